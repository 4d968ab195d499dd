"""The wire between two engines: who does not know the secret gets nothing, and what is not whole is not taken."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from quire.core.connector import TierFailed
from quire.movers.wire import CLIENT, MAGIC, MOST_HEAD_BYTES, SERVER, Wire, greet, welcome

SECRET, OTHER = b"known to two of us", b"known to somebody else"
KEY = bytes(32)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def beside(action: Callable[[], object]) -> Callable[[], object]:
    """Runs an action in a thread; what it returned or raised, when asked."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(action())
        except TierFailed as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> object:
        thread.join(10)
        return found[0]

    return result


@contextmanager
def wires(seconds: float = 5.0) -> Iterator[tuple[Wire, Wire]]:
    with pair() as (one, other):
        yield Wire(one, KEY, CLIENT, seconds), Wire(other, KEY, SERVER, seconds)


def test_frames_go_both_ways_after_both_have_proved_that_they_know_the_secret() -> None:
    with pair() as (one, other):
        server = beside(lambda: welcome(other, SECRET, 5, 5))
        client = greet(one, SECRET, 5)
        answering = server()
        assert isinstance(answering, Wire)
        client.send({"fetch": [1]}, b"data")
        head, data = answering.receive(4)
        assert (head, bytes(data)) == ({"fetch": [1]}, b"data")
        answering.send({}, b"more")
        assert bytes(client.receive(4)[1]) == b"more"


def test_a_client_with_another_secret_is_turned_away_and_told_so() -> None:
    with pair() as (one, other):
        server = beside(lambda: welcome(other, SECRET, 5, 5))
        with pytest.raises(TierFailed, match="give both the same --peer-secret"):
            greet(one, OTHER, 5)
        assert "does not know the secret" in str(server())


def test_a_server_that_only_pretends_is_not_told_anything() -> None:
    """It lets everybody in: the client sees that it cannot prove anything, and that its own proof tells nothing."""
    with pair() as (one, other):
        client = beside(lambda: greet(one, SECRET, 5))
        other.sendall(MAGIC + bytes(32))
        answer = other.recv(64, socket.MSG_WAITALL)
        assert SECRET not in answer
        other.sendall(answer[32:])
        assert "does not know the secret" in str(client())


def test_somebody_else_who_listens_there_is_no_peer() -> None:
    with pair() as (one, other):
        other.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        with pytest.raises(TierFailed, match="no peer"):
            greet(one, SECRET, 5)


def test_a_byte_that_was_changed_anywhere_ends_the_connection() -> None:
    with pair() as (one, other):
        Wire(one, KEY, CLIENT, 5).send({"fetch": [7]}, b"twelve bytes")
        whole = other.recv(1 << 16)
    for place in range(12, len(whole)):  # lengths are bounded, or too few bytes come
        with pair() as (one, other):
            one.sendall(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(TierFailed):
                Wire(other, KEY, SERVER, 5).receive(12)


def test_a_frame_cannot_be_sent_again_or_back() -> None:
    with wires() as (client, server):
        client.send({"one": 1})
        frame = server.socket.recv(1 << 16)
        client.socket.sendall(frame + frame)
        assert server.receive()[0] == {"one": 1}
        with pytest.raises(TierFailed, match="not what the other side sent"):
            server.receive()
        server.socket.sendall(frame)
        with pytest.raises(TierFailed, match="not what the other side sent"):
            client.receive()


@pytest.mark.parametrize(("head_bytes", "data_bytes"), [(MOST_HEAD_BYTES + 1, 0), (2, 1025), (1 << 31, 1 << 63)])
def test_a_frame_that_is_larger_than_it_may_be_is_not_read(head_bytes: int, data_bytes: int) -> None:
    with wires() as (client, server):
        client.socket.sendall(struct.pack("<IQ", head_bytes, data_bytes))
        with pytest.raises(TierFailed, match="were expected"):
            server.receive(1024)


def test_silence_and_trickles_end_at_the_deadline_and_a_hang_up_at_once() -> None:
    with wires(seconds=0.05) as (client, server):
        with pytest.raises(TierFailed, match="no answer in time"):
            server.receive()
        ended = beside(lambda: server.receive())
        for _ in range(11):  # never a whole header
            client.socket.sendall(b"\0")
            threading.Event().wait(0.01)
        assert "no answer in time" in str(ended())
        client.socket.close()
        with pytest.raises(TierFailed, match="has gone"):
            server.receive()


def test_a_head_that_is_no_object_is_refused() -> None:
    with wires() as (client, server):
        client.send([1, 2])  # type: ignore[arg-type]
        with pytest.raises(TierFailed, match="no JSON object"):
            server.receive()
