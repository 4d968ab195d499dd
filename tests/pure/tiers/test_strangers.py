"""Callers of a prefill engine that have not proved the secret."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from quire.movers import offering
from quire.movers.offering import PeerServer
from quire.movers.wire import greet
from scenes_of_tiers import small_plan, until

SECRET = b"known to two of us"
NO_SERVICE: Any = None
"""No prompt is ever asked for here."""


@pytest.mark.story
def test_callers_that_say_nothing_do_not_keep_a_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: one more ends the oldest. They would have a minute here to prove the secret."""
    monkeypatch.setattr(offering, "STRANGER_SECONDS", 60.0)
    monkeypatch.setattr(offering, "MOST_STRANGERS", 4)
    monkeypatch.setattr(offering, "MOST_CONNECTIONS", 2)
    server = PeerServer(("127.0.0.1", 0), SECRET, small_plan(["full"]), "f" * 64, NO_SERVICE)
    address = ("127.0.0.1", server.port)
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(12)]
        until(lambda: server.counters["strangers"] == 8)
        with socket.create_connection(address) as peer:
            assert "unit_tokens" in greet(peer, SECRET, 20).receive()[0]
        for oldest in silent[:8]:
            while oldest.recv(4096):
                pass
        until(lambda: server.connections == 3)


def test_a_caller_that_says_nothing_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a frame of a peer that has proved the secret."""
    assert offering.STRANGER_SECONDS < offering.FRAME_SECONDS
    monkeypatch.setattr(offering, "STRANGER_SECONDS", 0.01)
    server = PeerServer(("127.0.0.1", 0), SECRET, small_plan(["full"]), "f" * 64, NO_SERVICE)
    with contextlib.closing(server), socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
        while silent.recv(4096):
            pass
        until(lambda: server.counters["strangers"] == 1)
