"""Requests that wait for another engine to compute their prompts: each comes back once, whatever happens there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from quire.core.connector import TierFailed
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine
from quire.handover.decode_side import HandOver
from quire.handover.peer import PromptReady, PromptRefused
from quire.plan.records import Records
from quire.tiers.guarded import FIRST_PAUSE_SECONDS
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, CheckingRunner, small_plan, until

READY = PromptReady()
PLAN = small_plan(["full", "window"])
UNIT = PLAN.reuse_unit_tokens
PROMPT = np.arange(8 * UNIT + 1, dtype=np.int32)


class Answering:
    """A source that does as the test says, when the gate opens."""

    def __init__(self, answer: PromptReady | PromptRefused | None) -> None:
        """None: the other engine is lost."""
        self.answer = answer
        self.released: list[str] = []
        self.asked: list[str] = []
        self.gate = threading.Event()

    def boundary(self, prompt_tokens: int) -> int:
        return (prompt_tokens - 1) // UNIT * UNIT

    def lacking(self, prompt_tokens: int) -> str:
        del prompt_tokens
        return ""

    def ask(
        self, request: str, scope: str, prompt: Tokens, keys: Sequence[bytes], seconds: float
    ) -> PromptReady | PromptRefused:
        del scope, prompt, keys, seconds
        self.asked.append(request)
        self.gate.wait(20)
        if self.answer is None:
            raise TierFailed("gone")
        return self.answer

    def release(self, request: str) -> None:
        self.released.append(request)


class Guard:
    """A tier as `GuardedTier` shows it."""

    can_read = True
    failures = 0

    def note_failure(self, _: str) -> None:
        self.failures += 1

    def attempt(self, _: str, action: Callable[[], object]) -> object:
        try:
            return action()
        except TierFailed:
            self.can_read = False
            return None


class Ticket:
    def __init__(self, answer: PromptReady | PromptRefused | None = READY, seconds: float = 20.0) -> None:
        self.source, self.guard = Answering(answer), Guard()
        records = Records(PLAN)
        self.memory = Bytes(64, records.block_bytes)
        self.stack = Stack(records, self.memory, [], LAYOUT)
        self.hand_over = HandOver(self.stack, self.guard, self.source, seconds)  # type: ignore[arg-type]
        runner = CheckingRunner(PLAN, self.stack, self.memory)
        self.engine = Engine(
            PLAN, runner, tier=self.stack, keeper=self.stack, listeners=[self.hand_over.on_event]
        )  # fmt: skip

    def take(self, name: str, prompt: np.ndarray = PROMPT) -> bool:
        return self.hand_over.take(self.engine, Request(name, prompt, 2))

    def back(self) -> list[str]:
        found: list[Request] = []
        until(lambda: bool(found.extend(self.hand_over.turn()) or found))
        return [request.name for request in found]

    def close(self) -> None:
        self.source.gate.set()
        self.hand_over.close()
        self.stack.close()


@pytest.mark.parametrize(
    ("answer", "counted"), [(READY, "handed"), (PromptRefused("no room"), "refused"), (None, "lost")]
)
def test_a_request_comes_back_once_whatever_the_other_engine_says(
    answer: PromptReady | PromptRefused | None, counted: str
) -> None:
    waiting = Ticket(answer)
    assert waiting.take("one")
    assert waiting.hand_over.turn() == []
    assert "one" in waiting.hand_over
    waiting.source.gate.set()
    assert waiting.back() == ["one"]
    assert waiting.hand_over.turn() == []
    assert not len(waiting.hand_over)
    assert waiting.hand_over.counters == {counted: 1}
    assert waiting.take("two") == (answer is not None), "an engine that is lost is left alone"
    waiting.close()


def test_a_request_that_waits_too_long_comes_back_and_its_late_answer_is_let_go() -> None:
    waiting = Ticket(seconds=0.05)
    assert waiting.take("one")
    assert waiting.back() == ["one"]
    assert waiting.hand_over.counters == {"late": 1}
    waiting.source.gate.set()
    until(lambda: waiting.source.released == ["one", "one"])
    assert waiting.hand_over.turn() == []
    waiting.close()


@pytest.mark.story
def test_an_engine_that_is_late_is_told_counted_and_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Its wires say that it is busy, for ever: not every prompt waits to the end."""
    waiting = Ticket(seconds=0.05)
    assert waiting.take("one")
    assert waiting.take("two")
    with caplog.at_level(logging.WARNING, "quire.tiers"):
        until(lambda: waiting.hand_over.turn() == [] and not len(waiting.hand_over))
    (line,) = caplog.records
    assert "did not have it within 0.05 s (--peer-seconds)" in line.getMessage()
    assert waiting.guard.failures == 2
    assert waiting.guard.can_read, "what is ready can be fetched"
    assert not waiting.take("three")
    assert waiting.hand_over._pause == 2 * FIRST_PAUSE_SECONDS, "two were late together"
    waiting.hand_over._seconds = 20.0
    waiting.source.gate.set()
    until(lambda: waiting.take("four"))
    until(lambda: waiting.hand_over.counters["handed"] == 1)
    assert waiting.hand_over._pause == FIRST_PAUSE_SECONDS
    waiting.close()


def test_a_request_that_nobody_wants_any_more_does_not_come_back() -> None:
    waiting = Ticket()
    assert waiting.take("before")
    waiting.hand_over.cancel("before")
    assert waiting.take("answered")
    waiting.source.gate.set()
    until(lambda: not len(waiting.hand_over))
    waiting.hand_over.cancel("answered")
    assert waiting.hand_over.turn() == []
    assert {"before", "answered"} <= set(waiting.source.released)
    waiting.close()


def test_what_is_here_already_is_not_asked_for_and_neither_are_short_prompts() -> None:
    waiting = Ticket()
    assert not waiting.take("short", PROMPT[: UNIT // 2])
    stream = waiting.engine.submit(Request("here", PROMPT, 2))
    waiting.engine.drain()
    assert stream.ended is not None
    assert not waiting.take("again")
    waiting.engine.scheduler.reuse.index.drop()
    assert not waiting.take("in host memory")
    other = PROMPT[::-1].copy()
    assert waiting.take("another", other)
    until(lambda: waiting.source.asked == ["another"])
    waiting.close()


def test_an_offer_is_let_go_when_its_request_begins_without_it_or_ends() -> None:
    waiting = Ticket()
    waiting.source.gate.set()
    assert waiting.take("one")
    (name,) = waiting.back()
    waiting.engine.submit(Request(name, PROMPT, 3))
    waiting.engine.step()
    assert waiting.hand_over.turn() == []
    assert waiting.source.released == ["one"], "it found nothing, and computes"
    waiting.engine.drain()
    assert set(waiting.source.released) == {"one"}
    waiting.close()
