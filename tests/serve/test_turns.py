"""Long bodies and grammars are read in one thread: tenants take turns."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence

import pytest

from quire.serve.turns import Turns


def order_of(asked: Sequence[str]) -> list[str]:
    """Whose readings came when, if all were asked for in this order, at once."""
    came: list[str] = []

    async def all_of_them() -> None:
        turns = Turns()
        await asyncio.gather(*(turns.read(lambda tenant=tenant: came.append(tenant), tenant) for tenant in asked))

    asyncio.run(all_of_them())
    return came


@pytest.mark.story
def test_a_tenant_with_many_readings_delays_others_by_one() -> None:
    """A client with endless schemas once let everybody's tool calls wait for all of them."""
    came = order_of(["greedy"] * 6 + ["ann", "bob"])
    assert came[:3] == ["greedy", "ann", "bob"]
    assert came[3:] == ["greedy"] * 5


def test_a_reading_that_nobody_waits_for_any_more_keeps_its_turn() -> None:
    came: list[str] = []
    started, goes_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        goes_on.wait(30)
        came.append("first")

    async def three() -> None:
        turns = Turns()
        first = asyncio.create_task(turns.read(slow, "greedy"))
        await asyncio.to_thread(started.wait, 30)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        others = [turns.read(lambda: came.append("second"), "greedy"), turns.read(lambda: came.append("ann"), "ann")]
        asyncio.get_running_loop().call_later(0.05, goes_on.set)
        await asyncio.gather(*others)

    asyncio.run(three())
    assert came == ["first", "ann", "second"]


def test_what_a_reading_refuses_reaches_the_one_that_asked_and_the_next_goes_on() -> None:
    def refuses() -> str:
        raise ValueError("no")

    async def both() -> list[str | BaseException]:
        turns = Turns()
        asked = (turns.read(refuses, "ann"), turns.read(lambda: "read", "ann"))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [str(found) for found in asyncio.run(both())] == ["no", "read"]


def test_nothing_is_kept_of_tenants_that_have_no_reading() -> None:
    async def some() -> int:
        turns = Turns()
        await asyncio.gather(*(turns.read(lambda: None, str(number)) for number in range(4)))
        gc.collect()
        return len(turns._locks)

    assert asyncio.run(some()) == 0
