"""Rank 0 watches the others: a death, a silence, a difference, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from quire.cache.memory import StageMemory
from quire.core.errors import InputError
from quire.core.step import Step, StepResult
from quire.ranks.channel import LOST_RANK_0, Channel
from quire.ranks.facts import facts_of, require_same
from quire.ranks.group import Group, Link, RankLost
from quire.ranks.message import decode
from quire.ranks.runner import Ranks
from quire.ranks.tables import empty_tables
from rank_processes import group_of, start_rank
from small_engines import small_plan

PATIENCE_SECONDS = 60


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "still not so"
        time.sleep(0.01)


def process_of(link: Link) -> subprocess.Popen[bytes]:
    assert link.process is not None
    return link.process


def test_steps_reach_all_ranks_and_are_confirmed() -> None:
    with group_of(3) as (group, lost):
        group.run(PATIENCE_SECONDS)
        for number in (1, 2, 3):
            group.launch(number, b"")
        until(lambda: [link.confirmed for link in group.links] == [3, 3])
        assert not lost


def test_a_killed_rank_is_named_and_takes_the_others_with_it() -> None:
    """Rank 0 is told once; a step that follows raises the same, and no process is left."""
    with group_of(3) as (group, lost):
        group.run(PATIENCE_SECONDS)
        process_of(group.links[1]).kill()
        until(lambda: bool(lost))
        assert lost == ["rank 2 of 3 is lost: it was killed by SIGKILL"]
        with pytest.raises(RankLost, match="rank 2 of 3 is lost"):
            group.launch(1, b"")
        until(lambda: process_of(group.links[0]).poll() is not None)
    assert len(lost) == 1


def test_a_stopped_rank_is_named_after_the_time_for_a_step() -> None:
    """It cannot say anything itself, and its pipe stays open."""
    with group_of(3) as (group, lost):
        process_of(group.links[0]).send_signal(signal.SIGSTOP)
        group.run(0.3)
        group.launch(1, b"")
        until(lambda: bool(lost))
        assert lost == ["rank 1 of 3 is lost: it has not confirmed step 1 within 0.3 s (--step-seconds)"]


@pytest.mark.story
def test_a_rank_that_is_stopped_while_a_record_is_read_is_lost_too() -> None:
    """No step is in flight while all requests wait for prefixes from disk. Red if an order had all the time there is. A
    rank must take it in time; its disk need not be quick."""
    with group_of(3) as (group, lost):
        group.run(60.0)
        assert group.order({"do": "read"})() == [{"number": 0}] * 2
        process_of(group.links[1]).send_signal(signal.SIGSTOP)
        group.run(0.3)
        answers = group.order({"do": "read"})
        with pytest.raises(RankLost, match="rank 2 of 3 is lost: it has not taken an order about a record within"):
            answers()
        until(lambda: bool(lost))


@pytest.mark.parametrize(
    ("step", "why"),
    [(b"exit", "its process ended with exit code 3"), (b"fail", "it does not feel like it")],
)
def test_a_rank_that_ends_by_itself_is_reported_with_its_reason(step: bytes, why: str) -> None:
    with group_of(2) as (group, lost):
        group.run(PATIENCE_SECONDS)
        group.launch(1, step)
        until(lambda: bool(lost))
        assert lost == [f"rank 1 of 2 is lost: {why}"]


def test_a_rank_that_says_nothing_while_it_starts_is_given_up() -> None:
    group = Group([start_rank(1)], 60.0)
    try:
        group.answers()
        group._seconds = 0.1
        with pytest.raises(RankLost, match=r"rank 1 of 2 is lost: it has said nothing for 0\.1 s of its start"):
            group.answers()
    finally:
        group.close()


def test_ranks_end_with_rank_0_even_if_it_says_nothing() -> None:
    """The kernel closes its pipes when it is killed."""
    link = start_rank(1)
    link.channel.receive_one()
    link.channel.close()
    assert process_of(link).wait(PATIENCE_SECONDS) == LOST_RANK_0


def test_ranks_that_are_ended_on_purpose_end_well() -> None:
    with group_of(2) as (group, _):
        group.run(PATIENCE_SECONDS)
    assert process_of(group.links[0]).returncode == 0


def test_what_waits_for_ranks_ends_when_one_is_lost() -> None:
    """A collective that connects would wait for as long as torch lets it."""
    with group_of(2) as (group, _):
        assert group.watched(lambda: 7) == 7
        threading.Timer(0.1, process_of(group.links[0]).kill).start()
        with pytest.raises(RankLost, match="SIGKILL"):
            group.watched(threading.Event().wait)


def test_a_rank_with_anything_else_is_refused_by_name() -> None:
    own = facts_of(small_plan(["full"], 40), "weights", "cpu")
    assert {"plan", "weights", "run", "quire", "torch", "transformers", "python"} == set(own)
    require_same(own, [own, dict(own)])
    with pytest.raises(InputError, match=r"^rank 2 has torch 1\.0, rank 0 has .*: install the same version on every"):
        require_same(own, [own, own | {"torch": "1.0"}])
    with pytest.raises(InputError, match=r"^rank 1 has weights other, rank 0 has weights: give every rank the same"):
        require_same(own, [own | {"weights": "other"}])


class Own:
    """Rank 0's runner: notes what has arrived elsewhere before it launches."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.launched: list[int] = []
        self.error = error

    def launch(self, step: Step) -> None:
        if self.error is not None:
            raise self.error
        self.launched.append(step.number)

    def collect(self) -> StepResult:
        return StepResult(self.launched.pop(0), np.empty(0, dtype=np.int64))


def _step(number: int) -> Step:
    none = np.empty(0, dtype=np.int64)
    plan = small_plan(["full"], 40)
    return Step(number, none, none, none, none.astype(np.bool_), none, none.astype(np.int32), tables=empty_tables(plan))


def test_other_ranks_have_a_step_before_rank_0_begins_it() -> None:
    """All work at the same time: a step that was sent after rank 0 has computed its share would take twice as long."""
    plan, (ours, theirs) = small_plan(["full"], 40), socket.socketpair()
    group, other, own = Group([Link(1, Channel(ours))], 60.0), Channel(theirs), Own(RuntimeError("out of memory"))
    ranks = Ranks(own, group)
    ranks.follow(StageMemory(plan.stages[0], plan, plan.max_requests).tables)
    with pytest.raises(RuntimeError, match="out of memory"):
        ranks.launch(_step(4))
    assert decode(other.receive_one().data, empty_tables(plan)).step.number == 4
    with pytest.raises(RankLost, match=r"step 4 failed on rank 0 \(RuntimeError\('out of memory'\)\)"):
        ranks.launch(_step(5))
    group.close()
    other.close()


def test_a_step_that_fails_because_a_rank_is_gone_says_so() -> None:
    """What a collective raises then is about addresses and sockets."""
    with group_of(2) as (group, _):
        group.run(PATIENCE_SECONDS)
        ranks = Ranks(Own(RuntimeError("Connection closed by peer [127.0.0.1]:3")), group)
        os.kill(process_of(group.links[0]).pid, signal.SIGKILL)
        with pytest.raises(RankLost, match="rank 1 of 2 is lost: it was killed by SIGKILL"):
            ranks.launch(_step(1))
