"""Attacks on the gateway in front of two real servers with keys: what a stranger sends is neither kept nor read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateways import RunningGateway, running_gateway
from quire.deploy import calls
from quire.serve.keys import Tenant, add_key
from quire.serve.settings import ServeSettings
from quire.serve.turns import SMALL_BYTES
from running_server import PLAIN, WAIT_SECONDS, running_server

pytestmark = pytest.mark.servers

SIZE = ("--pool", "4MiB", "--max-length", "1024", "--max-requests", "4", "--batch-tokens", "64")
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
NESTED = b'{"input": ' + b"[" * 100_000


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return file, add_key(file, Tenant("alice", "alice"))


@pytest.fixture(scope="module")
def gateway(tiny_folder: Path, key_file: tuple[Path, str]) -> Iterator[RunningGateway]:
    options = (str(tiny_folder), *SIZE, "--keys", str(key_file[0]), "--model-name", "tiny")
    with (
        running_server(*options, model="tiny") as one,
        running_server(*options, model="tiny") as other,
        running_gateway(ServeSettings(keys=key_file[0])) as gateway,
    ):
        gateway.knows(a=one, b=other)
        yield gateway


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.address, timeout=WAIT_SECONDS, verify=PLAIN) as client:
        yield client


@pytest.fixture
def key(key_file: tuple[Path, str]) -> dict[str, str]:
    return {"authorization": f"Bearer {key_file[1]}"}


def talk(gateway: RunningGateway, sent: bytes) -> int:
    """Sends these bytes and no more; the status of the answer."""
    address = urlsplit(gateway.address)
    with socket.create_connection((address.hostname or "", address.port or 0), WAIT_SECONDS) as connection:
        connection.sendall(sent)
        return int(connection.recv(65536).split()[1])


@pytest.mark.story
@pytest.mark.parametrize("path", ["/health", *GENERATING])
def test_no_body_is_awaited_without_a_key(gateway: RunningGateway, path: str) -> None:
    """It was kept whole, then read on the event loop: 4 MB without a key held up all other calls for 4 s. Red: an
    answer that waits for the rest of the body."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
    assert talk(gateway, head.encode() + b"x" * 9) == 401


def test_what_needs_no_key_is_answered_without_one(client: httpx.Client) -> None:
    assert client.get("/health/live").status_code == 200
    assert client.get("/v1/models").status_code == 401


@pytest.mark.story
@pytest.mark.parametrize("path", GENERATING)
def test_a_body_that_is_nested_too_deeply_is_refused(client: httpx.Client, key: dict[str, str], path: str) -> None:
    """It was a bug's 500, with and without a key."""
    assert client.post(path, content=NESTED, headers=key).status_code == 400
    assert client.post(path, content=NESTED).status_code == 401


@pytest.mark.story
@pytest.mark.parametrize("depth", [150, 300, 600, 900])
def test_what_can_be_read_and_not_be_written_again_is_refused(
    client: httpx.Client, key: dict[str, str], depth: int
) -> None:
    """Whatever of it the parser takes, the question for the replicas may be too deep."""
    content = b'{"model": "tiny", "messages": ' + b"[" * depth + b"]" * depth + b"}"
    assert client.post("/v1/chat/completions", content=content, headers=key).status_code == 400


@pytest.mark.story
def test_a_target_that_is_no_path_reaches_no_replica(gateway: RunningGateway) -> None:
    """It was written behind a replica's address as it was: `*` was a 500, and with a parser that takes `@HOST/`, the
    call would have gone to that host."""
    assert talk(gateway, b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n") == 400


@pytest.mark.story
def test_others_are_answered_while_a_long_body_is_read(
    client: httpx.Client, gateway: RunningGateway, key: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt of a long body is read in a thread. Red: a reading on the event loop, which nothing ends here."""
    begun, may_end = threading.Event(), threading.Event()
    read = calls.asked_about

    def wait(*arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(WAIT_SECONDS)
        return read(*arguments)

    monkeypatch.setattr(calls, "asked_about", wait)
    body = {"model": "tiny", "prompt": "fox " * SMALL_BYTES, "max_tokens": 1}
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(httpx.post, f"{gateway.address}/v1/completions", json=body, headers=key, timeout=60)
        assert begun.wait(WAIT_SECONDS)
        try:
            assert client.get("/health/live", timeout=10).status_code == 200
        finally:
            may_end.set()
        assert asking.result().status_code == 400  # longer than the longest request
