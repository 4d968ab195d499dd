"""A client that leaves, while its answer is made or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.serve.streams import ClientLeft, ClientWatch


def receiving(left: asyncio.Event) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What a server gives to its application: the client leaves when the event is set."""

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    return receive


async def work(ended: list[str], done: asyncio.Event) -> str:
    try:
        await done.wait()
        ended.append("done")
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    return "a value"


async def outcome(left: asyncio.Event, done: asyncio.Event) -> tuple[list[str], str]:
    """How the work ended, and what its caller got, which must not be cancelled later."""
    ended: list[str] = []
    watch = ClientWatch(receiving(left))
    try:
        got = await watch.unless_it_leaves(work(ended, done))
    except ClientLeft:
        got = "left"
    left.set()
    for _ in range(3):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    with pytest.raises(ClientLeft):  # what it begins later
        await watch.unless_it_leaves(asyncio.sleep(20))
    watch.end()
    return ended, got


@pytest.mark.parametrize(
    ("happen", "expected"),
    [
        (("done",), (["done"], "a value")),
        (("left",), (["cancelled"], "left")),
        (("done", "left"), (["done"], "a value")),
        (("left", "done"), (["done"], "a value")),
    ],
)
def test_work_gives_its_value_unless_its_client_leaves_first(
    happen: tuple[str, ...], expected: tuple[list[str], str]
) -> None:
    """Its caller goes on in any case, also if the client leaves in the turn of the event loop in which it is done."""

    async def run() -> tuple[list[str], str]:
        events = {"left": asyncio.Event(), "done": asyncio.Event()}
        asyncio.get_running_loop().call_later(0.01, lambda: [events[name].set() for name in happen])
        return await asyncio.wait_for(outcome(events["left"], events["done"]), 20)

    assert asyncio.run(run()) == expected


def test_a_server_that_ends_is_no_client_that_left() -> None:
    ended: list[str] = []

    async def run() -> None:
        watch = ClientWatch(receiving(asyncio.Event()))
        waiting = asyncio.ensure_future(watch.unless_it_leaves(work(ended, asyncio.Event())))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
    assert ended == ["cancelled"]
