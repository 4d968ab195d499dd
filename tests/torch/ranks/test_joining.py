"""Where processes of several machines find each other."""

from __future__ import annotations

import socket

import pytest

from quire.worker.ranks.joining import network_store


@pytest.mark.story
def test_the_store_listens_at_its_own_address_alone() -> None:
    """It knows no secret, and was open at all addresses of the machine. Red: a port that is taken at the next one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = network_store("127.0.0.1", port, True, 30.0)
    store.set("where", "here")
    assert network_store("127.0.0.1", port, False, 30.0).get("where") == b"here"
    socket.create_server(("127.0.0.2", port)).close()
