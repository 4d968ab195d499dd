"""One key's readers of the inspector leave room for those of others, and the planner's answers keep no call waiting."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from quire.serve.errors import ApiError
from quire.serve.inspector_limits import (
    MOST_STREAMS,
    QUESTIONS_AT_ONCE,
    QUESTIONS_PER_MINUTE,
    STREAMS_FOR_ADMINS,
    STREAMS_OF_KEY,
    OpenStreams,
    PlannerQuestions,
)
from quire.serve.keys import Tenant
from serve_kit import Clock

ALICE, BOB, ADMIN = Tenant("alice", "alice"), Tenant("bob", "bob"), Tenant("admin", "admin", is_admin=True)


def open_all(streams: OpenStreams, tenant: Tenant, count: int, stack: ExitStack) -> None:
    for _ in range(count):
        stack.enter_context(streams.opened(tenant))


def refusal(streams: OpenStreams, tenant: Tenant) -> ApiError:
    with pytest.raises(ApiError) as raised, streams.opened(tenant):
        pass
    assert (raised.value.status, raised.value.code, raised.value.retry_seconds) == (429, "too_many_watchers", 1)
    return raised.value


def test_a_key_that_has_all_its_streams_leaves_room_for_others() -> None:
    """One count for all keys would let Alice shut out Bob. What she closes, she may open again."""
    streams = OpenStreams()
    with ExitStack() as stack:
        open_all(streams, ALICE, STREAMS_OF_KEY, stack)
        assert str(refusal(streams, ALICE)) == (
            "8 streams of the inspector are open with this key, 8 may be: close one"
        )
        open_all(streams, BOB, STREAMS_OF_KEY, stack)
    with streams.opened(ALICE):
        pass


def test_all_keys_together_leave_room_for_admins() -> None:
    """And admins have a bound, too: each stream is a document twice a second."""
    streams, room = OpenStreams(), MOST_STREAMS - STREAMS_FOR_ADMINS
    with ExitStack() as stack:
        for number in range(room // STREAMS_OF_KEY):
            open_all(streams, Tenant(f"tenant {number}", ""), STREAMS_OF_KEY, stack)
        assert str(refusal(streams, ALICE)) == (
            "48 streams of the inspector are open, all keys but admins may have 48: ask for /v1/inspect"
        )
        open_all(streams, ADMIN, STREAMS_FOR_ADMINS, stack)
        assert "all keys may have 64" in str(refusal(streams, ADMIN))


def test_the_planner_is_asked_next_to_the_event_loop_with_keys_taking_turns() -> None:
    """The loop goes on while an answer is computed, one is computed at a time, and Bob waits for one of Alice's."""

    async def run() -> list[str]:
        questions, answered = PlannerQuestions(), []
        begun, go_on = threading.Event(), threading.Event()

        def ask(name: str) -> str:
            begun.set()
            assert go_on.wait(30)
            answered.append(name)
            return name

        asked = [("alice 1", ALICE), ("alice 2", ALICE), ("bob", BOB)]
        asking = [asyncio.ensure_future(questions.answer(partial(ask, name), tenant)) for name, tenant in asked]
        while not begun.is_set():
            await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*asking) == ["alice 1", "alice 2", "bob"]
        return answered

    assert asyncio.run(run()) == ["alice 1", "bob", "alice 2"]


def test_a_key_has_a_few_questions_open_at_once() -> None:
    """What waits would otherwise grow without an end. Another key may still ask."""

    async def run() -> None:
        questions, go_on = PlannerQuestions(), threading.Event()
        asking = [asyncio.ensure_future(questions.answer(go_on.wait, ALICE)) for _ in range(QUESTIONS_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="4 questions of this key to the planner are open, 4 may be") as raised:
            await questions.answer(go_on.wait, ALICE)
        assert (raised.value.status, raised.value.code) == (429, "planner_limit")
        asking.append(asyncio.ensure_future(questions.answer(go_on.wait, BOB)))
        go_on.set()
        assert await asyncio.gather(*asking) == [True] * (QUESTIONS_AT_ONCE + 1)
        assert await questions.answer(go_on.wait, ALICE)

    asyncio.run(run())


def test_a_key_asks_so_many_times_a_minute() -> None:
    """Refilled evenly; the refusal says when the next one is there."""

    async def run() -> None:
        clock = Clock()
        questions = PlannerQuestions(clock)
        for _ in range(QUESTIONS_PER_MINUTE):
            assert await questions.answer(lambda: 7, ALICE) == 7
        with pytest.raises(
            ApiError, match="may ask the planner 60 times a minute, and has: come back in 1 s"
        ) as raised:
            await questions.answer(lambda: 7, ALICE)
        assert (raised.value.status, raised.value.retry_seconds) == (429, 1)
        assert await questions.answer(lambda: 7, BOB) == 7
        clock.now += 1
        assert await questions.answer(lambda: 7, ALICE) == 7

    asyncio.run(run())
