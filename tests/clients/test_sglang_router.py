"""`sglang-router` in front of two servers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from typing import Any

import httpx
import pytest

from asked import ANSWER, GREEDY, MODEL, QUESTION, WAIT_SECONDS
from commands import command
from conftest import PYTHON, SIZE
from running_server import POLL_SECONDS, RunningServer, running_server

openai = pytest.importorskip("openai", reason="the package openai is not installed")


@pytest.fixture(scope="module")
def servers(server: RunningServer, folder: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    command("sglang-router")  # or skip, before another server starts
    with running_server(str(folder), *SIZE, model=MODEL, python=PYTHON) as second:
        yield server, second


@pytest.fixture(scope="module")
def router(servers: tuple[RunningServer, RunningServer]) -> Iterator[str]:
    """The address of a router that knows both servers, turn by turn."""
    with create_server(("127.0.0.1", 0)) as one, create_server(("127.0.0.1", 0)) as other:
        port, metrics = (str(listener.getsockname()[1]) for listener in (one, other))
    workers = [server.address for server in servers]
    process = subprocess.Popen(
        [command("sglang-router"), "launch", "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics,
         "--policy", "round_robin", "--disable-retries", "--worker-urls", *workers],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_workers(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


def wait_for_workers(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while healthy_workers(address) < 2:
        assert process.poll() is None, "the router ended"
        assert time.monotonic() < end, "the router does not find both servers"
        time.sleep(POLL_SECONDS)


def healthy_workers(address: str) -> int:
    try:
        return int(httpx.get(address + "/readiness").json().get("healthy_workers", 0))
    except (httpx.TransportError, ValueError):
        return 0


def completed(server: RunningServer) -> float:
    return server.metric("quire_http_calls_total", path="/v1/chat/completions", status="200")


def test_chats_reach_both_servers_whole_and_streamed(router: str, servers: tuple[RunningServer, ...]) -> None:
    """Four calls in turn, two at each server; a stream passes through."""
    before = [completed(server) for server in servers]
    with openai.OpenAI(base_url=router + "/v1", api_key="none", max_retries=0) as client:
        given: Any = {"messages": QUESTION, "max_tokens": 12, **GREEDY}
        for _ in range(2):
            assert client.chat.completions.create(**given).choices[0].message.content == ANSWER
        for _ in range(2):
            chunks = client.chat.completions.create(stream=True, **given)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    for server, was in zip(servers, before, strict=True):
        server.until("it has answered two calls", lambda server=server, was=was: completed(server) == was + 2)


def test_the_router_lists_the_model(router: str) -> None:
    """Under the servers' own name for it, which it finds in /server_info."""
    assert [model["id"] for model in httpx.get(router + "/v1/models").json()["data"]] == [MODEL]
