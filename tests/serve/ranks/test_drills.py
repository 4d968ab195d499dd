"""A served model whose ranks are killed and stopped at random moments: errors in time, service again, no orphan."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_drills import GONE, Crowd, is_alive, processes_of, signal_rank
from running_server import RunningServer, running_server
from serve_kit import chat

KILLS, STOPS = (int(os.environ.get(name, most)) for name, most in (("QUIRE_RANK_KILLS", 10), ("QUIRE_RANK_STOPS", 2)))
STEP_SECONDS = 5.0
ROWS, CLIENTS = 3, 7
SIZE = ("--pool", "2MiB", "--max-length", "512", "--max-requests", str(ROWS), "--batch-tokens", "128")
pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def server(tiny_folder: Path) -> Iterator[RunningServer]:
    ranks = ("--tensor-parallel", "2", "--step-seconds", str(STEP_SECONDS), "--device", "cpu")
    with running_server(str(tiny_folder), *SIZE, *ranks, "--model-name", "tiny", model="tiny") as running:
        yield running


def _drill(server: RunningServer, victim: int, number: int, pause: float) -> tuple[float, int, int]:
    """Sends a signal to one of the processes while clients are served. Returns after how many seconds the last error
    came, how many had one, and how many waited and were served by the next engine."""
    lives, processes = len(server.told("engine_ready")), processes_of(server)
    crowd = Crowd(server, CLIENTS, 250)
    crowd.start()
    server.until("they run", lambda: crowd.have_tokens >= ROWS)
    time.sleep(pause)
    sent_at = signal_rank(processes[victim], number)
    server.until("it is noticed", lambda: len(server.told("engine_died")) >= lives)
    server.until("nothing is left of the group", lambda: not any(map(is_alive, processes)))
    server.until("another engine is ready", lambda: len(server.told("engine_ready")) > lives)
    crowd.wait()
    failed = [call for call in crowd.calls if not call.is_complete]
    assert all("engine_gone" in call.error for call in failed), [call.error for call in failed]
    if victim:
        assert all(f"rank {victim} of 2 {GONE}" in call.error for call in failed)
        assert server.told("engine_died")[-1]["reason"].startswith(f"rank {victim} of 2 {GONE}")
        assert len(failed) <= ROWS, "only those that had a row end"
    later = sum(call.is_complete and call.ended_at > sent_at for call in crowd.calls)
    server.until("it is audited", server.is_audited)
    assert server.metric("quire_books_balance") == 1
    assert not server.told("books_do_not_balance")
    return max((call.ended_at - sent_at for call in failed), default=0.0), len(failed), later


def test_ranks_are_killed_and_stopped_at_random_moments(server: RunningServer) -> None:
    """Requests that had a row end with an error that names the rank; those that waited are served by the next engine.
    The times are printed: a busy machine says little about them."""
    choose = random.Random(os.environ.get("QUIRE_RANK_SEED", "ranks"))
    moves = [signal.SIGKILL] * KILLS + [signal.SIGSTOP] * STOPS
    choose.shuffle(moves)
    slowest, failed, later = {signal.SIGKILL: 0.0, signal.SIGSTOP: 0.0}, 0, 0
    for move in moves:
        victim = 1 if move is signal.SIGSTOP else choose.choice((1, 1, 1, 0))
        seconds, errors, served = _drill(server, victim, move, choose.uniform(0, 1))
        slowest[move], failed, later = max(slowest[move], seconds), failed + errors, later + served
        print(f"{move.name} of rank {victim}: {errors} errors, the last after {seconds:.2f} s", flush=True)
    print(f"slowest errors: {slowest[signal.SIGKILL]:.2f} s after a kill, {slowest[signal.SIGSTOP]:.2f} s after a stop")
    assert failed > 0
    assert later > 0
    with server.client() as client:
        assert chat(client, max_tokens=3).status_code == 200


def test_no_rank_outlives_a_server_that_is_killed(tiny_folder: Path) -> None:
    """Nobody is left to end them: their pipes close."""
    ranks = ("--tensor-parallel", "2", "--device", "cpu", "--model-name", "tiny")
    with running_server(str(tiny_folder), *SIZE, *ranks, model="tiny") as running:
        processes = processes_of(running)
        assert len(processes) == 2
        assert all(map(is_alive, processes))
        running.kill()
        end = time.monotonic() + 60
        while any(map(is_alive, processes)):
            assert time.monotonic() < end, "a rank is left"
            time.sleep(0.02)


def test_prefixes_on_disk_outlive_a_rank(tiny_folder: Path, tmp_path: Path) -> None:
    """The next engine and its ranks load what both have written. Red if a loss left parts of one rank alone."""
    ranks = ("--tensor-parallel", "2", "--device", "cpu", "--model-name", "tiny", "--disk", str(tmp_path / "disk"))
    asked = {"messages": [{"role": "user", "content": "the quick fox " * 60}], "max_tokens": 8, "temperature": 0}
    with running_server(str(tiny_folder), *SIZE, *ranks, model="tiny") as running, running.client() as client:
        first = chat(client, **asked).json()
        running.until(
            "it is on disk", lambda: running.metric("quire_tier_transfers_total", tier="disk", way="write") > 1
        )
        signal_rank(processes_of(running)[1], signal.SIGKILL)
        running.until("another engine is ready", lambda: len(running.told("engine_ready")) > 1 and running.is_ready())
        again = chat(client, **asked).json()
        assert again["choices"] == first["choices"]
        assert running.metric("quire_loads_total") > 0
        assert running.metric("quire_loads_failed_total") == 0
