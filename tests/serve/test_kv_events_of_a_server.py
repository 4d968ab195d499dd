"""A server with --kv-events: what a router reads from its sockets is what its cache holds."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from kv_follower import KvFollower, replayed
from running_server import running_server
from serve_kit import SIZE

pytestmark = pytest.mark.servers

pytest.importorskip("msgpack", reason="MessagePack is not installed: pip install '.[events]'")
zmq = pytest.importorskip("zmq", reason="ZeroMQ is not installed: pip install '.[events]'")
WAIT_SECONDS = 60.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_a_router_learns_the_blocks_of_a_prompt_that_the_server_has_computed(tiny_folder: Path) -> None:
    publish, replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    context, follower = zmq.Context(), KvFollower()
    arguments = (
        str(tiny_folder),
        "--device",
        "cpu",
        *SIZE,
        "--model-name",
        "tiny",
        "--kv-events",
        f"{publish},{replay}",
    )

    with running_server(*arguments, model="tiny") as server, server.client() as client:
        prompt = list(range(3, 203))
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        end = time.monotonic() + WAIT_SECONDS
        while not follower.blocks:
            assert time.monotonic() < end, "no block was published"
            follower.repair(replayed(context, replay, follower.expected, WAIT_SECONDS))
        known = max((tokens for tokens, _ in follower.blocks.values()), key=len)
        assert list(known) == prompt[: len(known)]
        assert len(known) >= 128
        room = client.post("/v1/room", json={"prompt": prompt}).json()
        assert room["pool_tokens"] >= len(known)
        assert client.get("/metrics").text.count("vllm:prefix_cache_queries_total 200.0") == 1
    context.term()
