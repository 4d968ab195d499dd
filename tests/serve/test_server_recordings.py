"""A server that writes down what its engine is given: what it did can be played back, also when it was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from quire.build.engine import prepare
from quire.cli.main import main
from quire.core.errors import InputError, QuireError
from quire.llm import LLM
from quire.options.peer import Peer, Role
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan.settings import Budget, Settings
from quire.recording.replay import replay
from quire.serve.keys import Tenant, add_key, remove_key
from running_server import RunningServer, running_server

pytestmark = pytest.mark.servers

SIZE = ("--pool", "4MiB", "--max-length", "256", "--max-requests", "4", "--batch-tokens", "64")
MORE = ("--host-memory", "8MiB", "--speculative-tokens", "2")


def test_what_a_killed_engine_did_can_be_played_back(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With guesses, a tier and a cache that is dropped between two answers; the next engine has a file of its own."""
    path = tmp_path / "run.jsonl"
    options = (*SIZE, *MORE, "--record", str(path))
    with running_server(str(tiny_folder), *options, model="tiny") as server, server.client() as client:
        asked = {"model": client.get("/v1/models").json()["data"][0]["id"], "prompt": "the fox " * 40, "max_tokens": 12}

        def ask() -> None:
            body = {**asked, "temperature": 1, "seed": 7}
            answer = client.post("/v1/completions", json=body, headers={"x-request-id": "bob-5"}).json()
            assert answer["usage"]["completion_tokens"] > 0
            server.until("it is idle", server.is_idle)

        ask()
        assert client.delete("/v1/cache").status_code == 200
        ask()
        steps, engine = int(server.metric("quire_steps_total")), server.engine
        os.kill(engine, signal.SIGKILL)
        server.until("another engine is ready", lambda: server.is_ready() and server.engine != engine)
        ask()
    again = replay(path)
    assert again.scheduler.steps == steps
    assert again.scheduler.is_idle()
    (told,) = server.told("recording")
    assert told["message"].endswith(f"is recorded in {tmp_path / 'run-1.jsonl'}")
    assert main(["replay", str(tmp_path / "run-1.jsonl")]) == 0
    assert "after" in capsys.readouterr().out
    assert main(["replay", str(path), "--explain", "bob-5"]) == 0
    assert "has ended" in capsys.readouterr().out


@pytest.mark.story
def test_a_key_that_is_added_or_changed_later_competes_by_its_weight(tiny_folder: Path, tmp_path: Path) -> None:
    """Weights were read once, when the server started: later keys had 1. Each request carries its key's weight, so a
    replay has the same weights."""
    path, file = tmp_path / "run.jsonl", tmp_path / "keys.json"
    add_key(file, Tenant("first", "first"))
    options = (*SIZE, "--record", str(path), "--keys", str(file))

    def ask(server: RunningServer, weight: float) -> None:
        key = add_key(file, Tenant("late", "late", weight=weight))
        with server.client(key) as client:
            server.until("the key is known", lambda: client.get("/v1/models").status_code == 200)
            body = {"model": "tiny", "prompt": "the fox", "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200

    with running_server(str(tiny_folder), *options, "--model-name", "tiny", model="tiny") as server:
        ask(server, 3.0)
        remove_key(file, "late")
        ask(server, 0.5)
    submitted = [json.loads(line)["submit"] for line in path.read_text().splitlines() if '"submit"' in line]
    assert [(one["tenant"], one["weight"]) for one in submitted] == [("late", 3.0), ("late", 0.5)]
    assert replay(path).scheduler.shares.weight("late") == 0.5


def test_the_library_records_too(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    settings = Settings(max_length=128, max_requests=2, batch_tokens=64)
    llm = LLM(tiny_folder, settings=settings, budget=Budget(pool_bytes=4 << 20), record=str(path))
    llm.generate("the fox", max_tokens=5, raw=True)
    llm.close()
    again = replay(path)
    assert again.counters.sums == llm.engine.counters.sums
    assert again.counters.events == llm.engine.counters.events


def test_what_two_engines_do_together_is_not_recorded(tmp_path: Path) -> None:
    tiers = Tiers(host_bytes=8 << 20, peer=Peer(role=Role.DECODE, host="127.0.0.1", port=1, secret=tmp_path / "secret"))
    with pytest.raises(InputError, match="leave --record or --role out"):
        RunOptions(tiers=tiers, record=tmp_path / "run.jsonl")


@pytest.mark.story
@pytest.mark.parametrize("name", ["run.jsonl.gz", "nowhere/run.jsonl"])
def test_a_recording_that_cannot_be_written_is_refused_before_a_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """There is no model at all: whoever looked for it first would say so."""
    record = tmp_path / name
    with pytest.raises(InputError, match="cannot record to"):
        prepare(tmp_path / "no-model", RunOptions(record=record))
    assert main(["serve", str(tmp_path / "no-model"), "--port", "0", "--record", str(record)]) == 2
    assert "cannot record to" in capsys.readouterr().err


def test_a_boot_that_fails_leaves_no_recording(tmp_path: Path) -> None:
    with pytest.raises(QuireError):
        prepare(tmp_path / "no-model", RunOptions(record=tmp_path / "run.jsonl"))
    assert not list(tmp_path.iterdir())
