"""Threads that carry records: in order, and never a reason why a process does not end."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading

import pytest

from quire.tiers.threads import Threads, close_all


def test_what_was_submitted_is_done_in_order_before_the_end() -> None:
    done: list[int] = []
    threads = Threads(1, "one")
    for number in range(5):
        threads.submit(lambda number=number: done.append(number))
    threads.flush()
    assert done == [0, 1, 2, 3, 4]
    threads.submit(lambda: done.append(5))
    threads.close()
    assert done == [0, 1, 2, 3, 4, 5]


def test_a_failure_is_told_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    threads = Threads(1, "one")
    with caplog.at_level(logging.WARNING, "quire.tiers"):
        threads.submit(lambda: 1 // 0)
        threads.submit(lambda: done.append("next"))
        threads.close()
    assert done == ["next"]
    assert "a transfer failed" in caplog.text


def test_what_no_thread_has_begun_can_be_dropped() -> None:
    done: list[str] = []
    gate, began = threading.Event(), threading.Event()
    threads = Threads(1, "one")
    threads.submit(lambda: began.set() or gate.wait())
    threads.submit(lambda: done.append("dropped"))
    began.wait()
    threads.drop()
    gate.set()
    threads.close()
    assert done == []


@pytest.mark.story
def test_whoever_closes_does_not_wait_for_what_never_returns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quire.tiers"):
        threads = Threads(2, "two")
        gate = threading.Event()
        threads.submit(gate.wait)
        threads.close(patience_seconds=0.05)
    assert "1 of 2 threads wait for what never comes" in caplog.text
    gate.set()


@pytest.mark.story
def test_a_process_ends_although_a_transfer_never_does() -> None:
    script = (
        "import threading; from quire.tiers.threads import Threads; Threads(1, 'one').submit(threading.Event().wait)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


class Contested:
    """A queue whose next action another thread takes, right after it was seen there."""

    def __init__(self, *actions: str) -> None:
        self.actions = list(actions)

    def empty(self) -> bool:
        is_empty = not self.actions
        del self.actions[:1]
        return is_empty

    qsize = empty

    def get_nowait(self) -> str:
        if not self.actions:
            raise queue.Empty
        return self.actions.pop(0)

    def get(self) -> str:
        assert self.actions, "it would wait for ever"
        return self.actions.pop(0)


@pytest.mark.story
def test_dropping_takes_all_that_is_left_and_never_waits_for_what_another_thread_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, contested = Threads(2, "two"), Contested("first", "second", "third")
    monkeypatch.setattr(threads, "_actions", contested)
    threads.drop()
    assert contested.actions == []


@pytest.mark.story
def test_however_many_never_return_whoever_closes_is_patient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own, by which each wait takes as long as it may."""
    now, gate, began = [0.0], threading.Event(), threading.Semaphore(0)
    pools = [Threads(2, "two"), Threads(1, "one")]
    for pool in (pools[0], *pools):
        pool.submit(lambda: began.release() or gate.wait())
    for _ in range(3):
        began.acquire()
    monkeypatch.setattr("quire.tiers.threads.time.monotonic", lambda: now[0])
    monkeypatch.setattr(threading.Thread, "join", lambda _, seconds: now.__setitem__(0, now[0] + seconds))
    close_all(pools, patience_seconds=10.0)
    assert 10.0 <= now[0] < 10.5
    gate.set()
