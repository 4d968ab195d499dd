"""Updates of a call: what its reader takes, and how long it waits."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from quire.core.logprobs import Logprob
from quire.serve.mailbox import Mailbox
from quire.serve.messages import RequestUpdate

FOREVER = 600.0


class Clock:
    """An event loop's clock that runs ahead: timers fire as if hours had passed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time, self._ahead = loop.time, 0.0
        loop.time = self  # type: ignore[method-assign, assignment]

    def __call__(self) -> float:
        return self._time() + self._ahead

    def skip(self, seconds: float) -> None:
        self._ahead += seconds


def test_all_that_has_arrived_is_taken_at_once_and_in_order() -> None:
    async def read() -> None:
        box: Mailbox[int] = Mailbox()
        for one in (1, 2, 3):
            box.put(one)
        assert await box.take(FOREVER, FOREVER) == [1, 2, 3]
        waiting = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        assert not waiting.done()
        box.put(4)
        box.put(5)
        box.deliver()
        assert await waiting == [4, 5]
        box.close()

    asyncio.run(read())


def test_a_wait_ends_after_its_own_time_though_an_earlier_one_has_set_the_timer() -> None:
    """Nothing has arrived: an empty list. A wait that began later has its full time, and a shorter one is not made to
    wait for the timer of a longer one."""

    async def read() -> None:
        clock, box = Clock(asyncio.get_running_loop()), Mailbox[int]()
        first = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        clock.skip(FOREVER - 1)
        box.put(1)
        box.deliver()
        assert await first == [1]
        second = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        clock.skip(2)  # the timer of the first wait fires
        for _ in range(3):
            await asyncio.sleep(0)
        assert not second.done()
        clock.skip(FOREVER)
        assert await second == []
        long = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        box.put(2)
        box.deliver()
        assert await long == [2]
        short = asyncio.ensure_future(box.take(5, FOREVER))
        await asyncio.sleep(0)
        clock.skip(6)
        assert await short == []
        assert await box.take(FOREVER, -1) == []
        box.close()

    asyncio.run(read())


def test_a_reader_that_leaves_and_a_closed_box_lose_nothing_and_wake_nobody() -> None:
    async def read() -> None:
        box: Mailbox[int] = Mailbox()
        leaving = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        box.put(1)
        box.deliver()
        assert await box.take(FOREVER, FOREVER) == [1]
        box.close()
        box.close()

    asyncio.run(read())


def test_what_its_reader_takes_wakes_no_task_and_what_it_leaves_does() -> None:
    """Updates are read in order: while the task has some to read, the reader gets none."""
    read: list[int] = []

    def take_small(arrived: list[int]) -> bool:
        if max(arrived) >= 10:
            return False
        read.extend(arrived)
        arrived.clear()
        return True

    async def run() -> None:
        box: Mailbox[int] = Mailbox()
        box.reader = take_small
        box.put(0)
        box.deliver()  # no task waits yet
        assert (await box.take(FOREVER, FOREVER), read) == ([0], [])
        waiting = asyncio.ensure_future(box.take(FOREVER, FOREVER))
        await asyncio.sleep(0)
        for one in (1, 2, 10, 3):
            box.put(one)
            if one != 1:
                box.deliver()
        assert read == [1, 2]
        assert await waiting == [10, 3]
        box.close()

    asyncio.run(run())


def test_a_task_waits_its_patience_from_the_last_update_that_was_read_and_never_beyond_its_end() -> None:
    def take(arrived: list[int]) -> bool:
        arrived.clear()
        return True

    async def run() -> None:
        clock, box = Clock(asyncio.get_running_loop()), Mailbox[int]()
        box.reader = take
        waiting = asyncio.ensure_future(box.take(10, 25))
        await asyncio.sleep(0)
        for _ in range(3):
            clock.skip(8)
            await asyncio.sleep(0.001)
            assert not waiting.done()
            box.put(1)
            box.deliver()
        clock.skip(2)
        assert await waiting == []
        patient = asyncio.ensure_future(box.take(10, FOREVER))
        await asyncio.sleep(0)
        clock.skip(11)
        assert await patient == []
        box.close()

    asyncio.run(run())


def test_a_reader_that_fails_or_has_read_the_end_wakes_the_task() -> None:
    """The task raises what the reader raised."""

    def take(arrived: list[str]) -> bool:
        if "bug" in arrived:
            raise KeyError("a bug")
        arrived.clear()
        return False

    async def run() -> None:
        box: Mailbox[str] = Mailbox()
        box.reader = take
        for last in ("end", "bug"):
            waiting = asyncio.ensure_future(box.take(FOREVER, FOREVER))
            await asyncio.sleep(0)
            box.put(last)
            box.deliver()
            box.deliver()
            if last == "end":
                assert await waiting == []
        with pytest.raises(KeyError, match="a bug"):
            await waiting
        box.close()

    asyncio.run(run())


def test_an_update_comes_out_of_the_pipe_as_it_went_in() -> None:
    """Each field: they are pickled by their places."""
    one = Logprob(3, -0.5, 1, ((3, -0.5),))
    update = RequestUpdate("a-0", (1, 2), (one,), (one, one), 7, "stop", "why", True)
    assert pickle.loads(pickle.dumps(update)) == update
    assert pickle.loads(pickle.dumps(RequestUpdate("b"))) == RequestUpdate("b")
