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
        assert await box.take(FOREVER) == [1, 2, 3]
        waiting = asyncio.ensure_future(box.take(FOREVER))
        await asyncio.sleep(0)
        assert not waiting.done()
        box.put(4)
        box.put(5)
        assert await waiting == [4, 5]
        box.close()

    asyncio.run(read())


def test_a_wait_ends_after_its_own_time_though_an_earlier_one_has_set_the_timer() -> None:
    """Nothing has arrived: an empty list. A wait that began later has its full time, and a shorter one is not made to
    wait for the timer of a longer one."""

    async def read() -> None:
        clock, box = Clock(asyncio.get_running_loop()), Mailbox[int]()
        first = asyncio.ensure_future(box.take(FOREVER))
        await asyncio.sleep(0)
        clock.skip(FOREVER - 1)
        box.put(1)
        assert await first == [1]
        second = asyncio.ensure_future(box.take(FOREVER))
        await asyncio.sleep(0)
        clock.skip(2)  # the timer of the first wait fires
        for _ in range(3):
            await asyncio.sleep(0)
        assert not second.done()
        clock.skip(FOREVER)
        assert await second == []
        long = asyncio.ensure_future(box.take(FOREVER))
        await asyncio.sleep(0)
        box.put(2)
        assert await long == [2]
        short = asyncio.ensure_future(box.take(5))
        await asyncio.sleep(0)
        clock.skip(6)
        assert await short == []
        assert await box.take(-1) == []
        box.close()

    asyncio.run(read())


def test_a_reader_that_leaves_and_a_closed_box_lose_nothing_and_wake_nobody() -> None:
    async def read() -> None:
        box: Mailbox[int] = Mailbox()
        leaving = asyncio.ensure_future(box.take(FOREVER))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        box.put(1)
        assert await box.take(FOREVER) == [1]
        box.close()
        box.close()

    asyncio.run(read())


def test_an_update_comes_out_of_the_pipe_as_it_went_in() -> None:
    """Each field: they are pickled by their places."""
    one = Logprob(3, -0.5, 1, ((3, -0.5),))
    update = RequestUpdate("a-0", (1, 2), (one,), (one, one), 7, "stop", "why", True)
    assert pickle.loads(pickle.dumps(update)) == update
    assert pickle.loads(pickle.dumps(RequestUpdate("b"))) == RequestUpdate("b")
