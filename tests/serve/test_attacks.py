"""Attacks on a server, as bytes on its socket: what each once did, a running server does no longer.

Nothing here but the command line and the wire: the same tests can be run against an older source.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quire.serve.keys import Tenant, add_key
from running_server import WAIT_SECONDS, RunningServer, running_server

SIZE = ("--pool", "4MiB", "--max-length", "256", "--max-requests", "4", "--batch-tokens", "64")
MOST_LOGGED = 1000
"""Characters of a line in the log, whatever a stranger sends."""


PLANTED = """
import sys
open({marker!r}, "w").close()
sys.path[:] = [path for path in sys.path if path not in ("", {folder!r})]
del sys.modules["numpy"]
import numpy
"""
"""Says that it was imported, and gives way to the real package."""


@dataclass(frozen=True)
class Kept:
    """A server with a file of keys."""

    server: RunningServer
    key: str
    marker: Path
    """Written if a file of the server's folder is imported."""


@pytest.fixture(scope="module")
def kept(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Started in a folder with a file that has the name of a package."""
    folder = tmp_path_factory.mktemp("shared")
    marker = folder / "imported"
    (folder / "numpy.py").write_text(PLANTED.format(marker=str(marker), folder=str(folder)))
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(keys, Tenant("alice", "alice"))
    with running_server(str(tiny_folder), *SIZE, "--keys", str(keys), model="tiny", folder=folder) as server:
        yield Kept(server, key, marker)


@pytest.fixture(scope="module")
def open_server(tiny_folder: Path) -> Iterator[RunningServer]:
    with running_server(str(tiny_folder), *SIZE, model="tiny") as server:
        yield server


def talk(server: RunningServer, *sent: str) -> tuple[int, dict[str, str]]:
    """Sends these bytes and no more; the status and headers of the first answer."""
    address = urlsplit(server.address)
    with socket.create_connection((address.hostname or "", address.port or 0), WAIT_SECONDS) as connection:
        for piece in sent:
            connection.sendall(piece.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            more = connection.recv(65536)
            assert more, f"closed without an answer: {received!r}"
            received += more
    head, *lines = received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return int(head.split()[1]), {
        name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
    }


@pytest.mark.story
def test_the_folder_where_a_server_starts_is_not_code(kept: Kept) -> None:
    """The engine's process imported `numpy.py` from there."""
    assert not kept.marker.exists()


@pytest.mark.story
@pytest.mark.parametrize("path", ["/health", "/metrics", "/openapi.json"])
def test_no_body_is_awaited_without_a_key(kept: Kept, path: str) -> None:
    """Open paths kept bodies of up to 4 MiB for each connection, until the last byte or a time limit came."""
    status, headers = talk(kept.server, f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", "x" * 9)
    assert status in (401, 405)
    assert headers["connection"] == "close"


@pytest.mark.story
def test_a_refused_call_is_read_no_further(kept: Kept) -> None:
    """Each one-byte chunk after the 401 was still parsed: one connection stalled everybody's streams."""
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    status, headers = talk(kept.server, head, "1\r\na\r\n" * 100)
    assert (status, headers["connection"]) == (401, "close")


@pytest.mark.story
def test_a_body_of_tiny_chunks_is_refused(kept: Kept) -> None:
    """Also with a key: it is valid JSON, in more pieces than the bound."""
    body = '{"model": "tiny", "max_tokens": 1, "prompt": "fox"' + " " * 5000 + "}"
    chunks = "".join(f"1\r\n{letter}\r\n" for letter in body) + "0\r\n\r\n"
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {kept.key}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    assert talk(kept.server, head + chunks)[0] == 400


@pytest.mark.story
@pytest.mark.parametrize(
    "head",
    [
        "GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /health HTTP/1.1\nhost: x\n\n",
        "GET /health HTTP/1.1\r\nhost: x\r\nx-folded: one\r\n two\r\n\r\n",
    ],
    ids=["two lengths", "bare line feeds", "folded header"],
)
def test_what_a_proxy_could_understand_differently_is_refused(kept: Kept, head: str) -> None:
    status, headers = talk(kept.server, head)
    assert (status, headers["connection"]) == (400, "close")


@pytest.mark.story
def test_metrics_tell_strangers_nothing(kept: Kept) -> None:
    """Differences of totals were the exact length of each request."""
    assert talk(kept.server, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 401


@pytest.mark.story
def test_a_strange_method_fills_no_log(kept: Kept) -> None:
    talk(kept.server, f"{'BREW' * 1500} /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    talk(kept.server, "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    kept.server.until("the later call is logged", lambda: any('"GET"' in line for line in kept.server.raw_logs))
    assert max(map(len, kept.server.raw_logs)) < MOST_LOGGED


@pytest.mark.story
@pytest.mark.parametrize("given", ["host: evil.example", "host: 127.0.0.1\r\norigin: http://evil.example"])
def test_a_server_without_keys_is_not_used_by_web_pages(open_server: RunningServer, given: str) -> None:
    body = '{"model": "tiny", "prompt": "fox", "max_tokens": 1}'
    head = f"POST /v1/completions HTTP/1.1\r\n{given}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}"
    assert talk(open_server, f"{head}\r\n\r\n{body}")[0] == 403


@pytest.mark.story
def test_an_engine_that_could_not_be_started_again_is_there_later(open_server: RunningServer) -> None:
    """One failed attempt was the last one, until a person restarted the server. No descriptor is free for a while, as
    when strangers hold all of them."""
    server, engine = open_server, open_server.engine
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(engine, signal.SIGKILL)
        server.until("it cannot be started", lambda: bool(server.told("engine_not_started")), 60)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    server.until("another engine is ready", lambda: server.is_ready() and server.engine != engine)
