"""Ranks that torchrun or Slurm starts: they find rank 0, come back with it and end with it. Starts that cannot work."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.options.child import python
from rank_drills import is_alive
from running_server import WAIT_SECONDS, running_server, without_options
from serve_kit import chat

SIZE = ("--pool", "2MiB", "--max-length", "512", "--max-requests", "4", "--batch-tokens", "128", "--device", "cpu")
TWO = ("--tensor-parallel", "2")
pytestmark = pytest.mark.ranks


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def place(rank: int, port: int, ranks: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextmanager
def other_rank(folder: Path, port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Rank 1 of two, as another machine would start it."""
    command = [*python("-m", "quire.cli.main", "rank"), str(folder), *SIZE, *TWO, *more]
    environment = {**without_options(), **place(1, port)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in text.split()]


def test_ranks_that_others_have_started_serve_and_come_back(tiny_folder: Path) -> None:
    """The engine is killed: the process of rank 1 that runs the model ends with it, and another one joins the next
    engine. When the server ends, so does the other rank, with success."""
    port = free_port()
    with other_rank(tiny_folder, port) as other:
        _serve_and_lose_an_engine(tiny_folder, port, other.pid)
        assert other.wait(WAIT_SECONDS) == 0


def _serve_and_lose_an_engine(folder: Path, port: int, other: int) -> None:
    options = (*SIZE, *TWO, "--launch", "environment", "--model-name", "tiny")
    with (
        running_server(str(folder), *options, model="tiny", environment=place(0, port)) as server,
        server.client() as client,
    ):
        assert chat(client, max_tokens=3).status_code == 200
        (running,) = children_of(other)
        os.kill(server.engine, signal.SIGKILL)
        server.until("its rank is gone", lambda: not is_alive(running))
        server.until("another engine is ready", lambda: len(server.told("engine_ready")) == 2)
        server.until("it serves", server.is_ready)
        assert chat(client, max_tokens=3).status_code == 200


def failed_start(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a server, and the last line that it wrote."""
    command = [*python("-m", "quire.cli.main", "serve"), str(folder), *SIZE, *arguments, "--port", "0"]
    ended = subprocess.run(
        command,
        env={**without_options(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    return ended.returncode, ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "environment", "line"),
    [
        (("--tensor-parallel", "3"), {}, "3 ranks"),
        (
            (*TWO, "--remote", "redis://host"),
            {},
            "a cache of prefixes on a server does not run on 2 ranks yet: leave --remote out",
        ),
        ((*TWO, "--start-seconds", "0"), {}, "--start-seconds is 0: give more than 0"),
        (TWO, {"GLOO_SOCKET_IFNAME": "nope0"}, "nope0"),
        ((*TWO, "--launch", "environment"), {}, "RANK is not set: start every rank with torchrun or Slurm"),
        ((*TWO, "--launch", "environment"), place(0, free_port(), 3), "WORLD_SIZE is 3, and the plan has 2 ranks"),
        (
            (*TWO, "--launch", "environment", "--start-seconds", "2"),
            place(0, free_port()),
            "of 2 ranks, 1 did not connect to 127.0.0.1 within 2 s: start each with the same command",
        ),
    ],
)
def test_a_start_that_cannot_work_ends_with_one_line(
    tiny_folder: Path, arguments: tuple[str, ...], environment: dict[str, str], line: str
) -> None:
    """With the numbers, and nothing left behind: the command returns only when its children have ended."""
    code, said = failed_start(tiny_folder, *arguments, environment=environment)
    assert line in said
    assert code in (1, 2)


def test_a_port_that_is_taken_is_one_line(tiny_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = place(0, taken.getsockname()[1])
        code, said = failed_start(tiny_folder, *TWO, "--launch", "environment", environment=environment)
    assert f"MASTER_ADDR:MASTER_PORT 127.0.0.1:{environment['MASTER_PORT']} is taken" in said
    assert code == 2


def test_a_rank_with_another_checkpoint_is_refused_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    """One machine has an older download: no weight is read, and both ends say why."""
    from tiny_folder import make_folder

    port, older = free_port(), make_folder(tmp_path, layers=2)
    with other_rank(older, port) as other:
        options = (*TWO, "--launch", "environment")
        code, said = failed_start(tiny_folder, *options, environment=place(0, port))
        assert "rank 1 has weights " in said
        assert "give every rank the same checkpoint" in said
        assert code == 2
        _, errors = other.communicate(timeout=WAIT_SECONDS)
        assert "rank 1 has weights " in errors
        assert other.returncode == 2
