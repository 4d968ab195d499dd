"""Messages between hub and fronts: whole, in order, and no front keeps the hub waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from quire.serve.errors import ApiError
from quire.serve.fronts import channel as channel_module
from quire.serve.fronts.channel import Channel, ChannelLost, receive_first


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def two_ends() -> tuple[Channel, Channel]:
    """The hub's and a front's."""
    ours, theirs = socket.socketpair()
    hub, front = Channel(ours, waits=False), Channel(theirs, waits=True)
    hub.open()
    front.open()
    return hub, front


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_messages_of_any_size_arrive_in_order() -> None:
    """Larger than the socket's buffer, too."""

    async def work() -> None:
        hub, front = two_ends()
        got: list[Any] = []
        front.on_notice = got.append
        sent = [b"x" * size for size in (0, 1, 1 << 22, 7, 3 << 20)]
        for message in sent:
            hub.send(message)
        await until(lambda: len(got) == len(sent))
        assert got == sent
        hub.close()
        front.close()

    run(work())


def test_questions_are_answered_and_errors_are_raised_where_they_were_asked() -> None:
    async def work() -> None:
        hub, front = two_ends()

        async def answer(question: Any) -> Any:
            if question == "refused":
                raise ApiError(429, "later", "queue_full", retry_seconds=9, numbers={"a": 1})
            await asyncio.sleep(0.01 if question == 1 else 0)
            return question * 2

        hub.on_question = answer
        assert await asyncio.gather(*(front.ask(number) for number in (1, 2, 3))) == [2, 4, 6]
        with pytest.raises(ApiError) as refused:
            await front.ask("refused")
        error = refused.value
        assert (error.status, error.code, error.retry_seconds, error.numbers) == (429, "queue_full", 9, {"a": 1})
        hub.close()
        with contextlib.suppress(ChannelLost):
            await front.ask(1)
            raise AssertionError("nobody is there")

    run(work())


def test_what_a_front_sends_is_there_when_the_hub_looks() -> None:
    """Without a turn of the hub's event loop in between: a question of one front is answered with what another one has
    said before."""

    async def work() -> None:
        hub, front = two_ends()
        got: list[Any] = []
        hub.on_notice = got.append
        front.send("left")
        hub.read()
        assert got == ["left"]
        hub.close()
        front.close()

    run(work())


def test_a_front_that_does_not_read_is_given_up_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MOST_WAITING_BYTES", 1 << 20)

    async def work() -> None:
        ours, theirs = socket.socketpair()
        hub, lost = Channel(ours, waits=False), []
        hub.on_lost = lambda: lost.append(True)
        hub.open()
        for _ in range(40):
            hub.send(b"x" * 65_536)
        assert lost == [True]
        theirs.close()

    run(work())


def test_the_first_message_can_be_read_before_there_is_an_event_loop() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        hub = Channel(ours, waits=False)
        hub.send({"set": "up"})
        hub.send("then")
        assert receive_first(theirs) == {"set": "up"}
        hub.close()
        with pytest.raises(ChannelLost):
            receive_first(theirs), receive_first(theirs)
        theirs.close()

    run(work())
