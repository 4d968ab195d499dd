"""`--launch ray`: ranks of one engine as actors, which die, stand still, find no place and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployed import deployed
from quire import LLM, Sampling
from quire.options.child import python
from quire.plan.settings import Budget, Settings
from running_server import WAIT_SECONDS, RunningServer, running_server, without_options
from serve_kit import CHAT, body, chat, wait_for_tokens
from shared_head import Head
from tiny_folder import make_folder

SIZE = ("--pool", "2MiB", "--max-length", "512", "--device", "cpu")
SERVED = (*SIZE, "--max-requests", "4", "--batch-tokens", "128", "--model-name", "tiny")
RANKS = ("--launch", "ray", "--tensor-parallel", "2")
STEP_SECONDS = "3"
PROMPT = "the quick brown fox sees the lazy dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"), head_width=32)


@pytest.fixture(scope="module")
def server(folder: Path, head: Head) -> Iterator[RunningServer]:
    options = (*SERVED, *RANKS, "--step-seconds", STEP_SECONDS)
    with running_server(str(folder), *options, model="tiny", environment=head.variables) as running:
        yield running


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[str]:
    """Of one process: greedy, and seeded."""
    llm = LLM(folder, device="cpu", settings=Settings(max_length=512), budget=Budget(pool_bytes=2 << 20))
    try:
        sampling = [Sampling(), Sampling(temperature=1.0, seed=7)]
        return [one.text for one in llm.generate([PROMPT] * 2, sampling, max_tokens=40, raw=True)]
    finally:
        llm.close()


def test_two_ranks_on_ray_generate_what_one_does(server: RunningServer, head: Head, texts: list[str]) -> None:
    """Both are in one bundle, which Ray never divides among machines; rank 0 is the engine, and reserves its part."""
    found = []
    with server.client() as client:
        for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 7}):
            asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, **sampling}
            found.append(client.post("/v1/completions", json=asked).json()["choices"][0]["text"])
    assert found == texts
    assert len(set(found)) == 2
    (bundles,) = head.groups()
    assert [bundle["CPU"] for bundle in bundles.values()] == [2]
    assert len(head.ranks()) == 1


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (signal.SIGKILL, "rank 1 of 2 is lost: its Ray actor ended because its worker process has died"),
        (signal.SIGSTOP, "rank 1 of 2 is lost: it has not confirmed step "),
    ],
)
def test_a_rank_that_is_killed_or_stopped_ends_its_requests_and_comes_back(
    server: RunningServer, head: Head, move: signal.Signals, says: str
) -> None:
    """Its stream ends with an error that names the rank; the next engine has a rank and a placement group of its own,
    and none of the one before is left. Red: an actor that is not ended with its engine."""
    (lost,) = head.ranks()
    engines = len(server.told("engine_ready"))
    asked = body(max_tokens=400, stream=True, ignore_eos=True)
    with server.client() as client, client.stream("POST", CHAT, json=asked) as stream:
        lines = stream.iter_lines()
        wait_for_tokens(lines, 3)
        os.kill(lost, move)
        (error,) = [line for line in lines if '"error"' in line]
    assert says in error
    server.until("another engine is ready", lambda: len(server.told("engine_ready")) == engines + 1)
    server.until("it serves", server.is_ready)
    with server.client() as client:
        assert chat(client, max_tokens=3).status_code == 200
    head.until("the lost rank is gone", lambda: lost not in head.ranks())
    assert len(head.ranks()) == 1
    assert len(head.groups()) == 1


def test_no_actor_and_no_placement_group_outlive_a_server_that_is_killed(server: RunningServer, head: Head) -> None:
    """Neither the server nor its engine can end them, and the rank cannot see that rank 0 is gone: they end with their
    owner. The last test of this server. Red: actors or placement groups that live longer than their driver."""
    (rank,) = head.ranks()
    os.kill(rank, signal.SIGSTOP)
    os.kill(server.engine, signal.SIGKILL)
    server.kill()
    head.until_free()


def started(variables: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    environment = {**without_options(), "OMP_NUM_THREADS": "1", **variables}
    command = [*python("-m", "quire.cli.main"), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and last line of errors."""
    with command:
        try:
            output, errors = command.communicate(timeout=WAIT_SECONDS)
        finally:
            command.kill()
    return command.returncode, output, (errors.strip().splitlines() or [""])[-1]


def test_two_stages_of_two_ranks_run_on_two_machines(folder: Path, head: Head, texts: list[str]) -> None:
    """No machine has CPUs for both stages; the ranks of one share a machine. The command ends by itself, and leaves
    nothing either."""
    asked = ("--pipeline-parallel", "2", "--max-tokens", "40", "--prompt", PROMPT, "--raw")
    code, text, errors = ended(started(head.variables, "generate", str(folder), *SIZE, *RANKS, *asked))
    assert code == 0, errors
    assert texts[0] in text
    head.until_free()


CLIENT = "ray://127.0.0.1:9"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {},
            r"Ray had no place for the ranks within 2 s: stage 0 needs 128 CPUs and \S+ MiB of memory on \S+; "
            r"4 CPUs of 4 and .* of memory of .* are free on 2 machines: end what uses them, add machines",
        ),
        ({"RAY_ADDRESS": "127.0.0.1:9"}, "no Ray cluster answers at 127.0.0.1:9: Connection refused"),
        ({"RAY_ADDRESS": CLIENT}, f"RAY_ADDRESS is {CLIENT}, and rank 0 is this process: run it on a machine of the"),
    ],
)
def test_ranks_without_a_place_are_refused_in_one_line(
    folder: Path, head: Head, variables: dict[str, str], says: str
) -> None:
    """Within the time to start, with what they need and what is there."""
    large = ("--threads", "64", "--start-seconds", "2", "--port", "0")
    code, _, line = ended(started(head.variables | variables, "serve", str(folder), *SERVED, *RANKS, *large))
    assert re.search(says, line), line
    assert code == 2
    assert not head.groups()


def test_an_actor_that_ends_while_it_starts_is_reported_at_once(folder: Path, head: Head) -> None:
    """Red: a start that waits for its connection until --start-seconds."""
    command = started(head.variables, "serve", str(folder), *SERVED, *RANKS, "--port", "0")
    head.until("the actor is there", lambda: bool(head.ranks()))
    os.kill(head.ranks()[0], signal.SIGKILL)
    code, _, line = ended(command)
    assert "rank 1 cannot start on Ray: its Ray actor ended because its worker process has died" in line
    assert code == 2
    head.until_free()


def test_a_replica_of_several_ranks_reserves_a_place_for_each(folder: Path, head: Head) -> None:
    """Ray Serve places the replica and its ranks together, and none of them outlives the deployment."""
    options = (*SERVED, *RANKS, "--ray-address", head.address)
    with deployed(str(folder), *options, "--port", "0", environment=head.variables) as deployment:
        with deployment.client() as client:
            assert chat(client, max_tokens=3).status_code == 200
        assert len(head.ranks()) == 1
        assert [bundle["CPU"] for group in head.groups() for bundle in group.values()] == [2]
    head.until_free()
