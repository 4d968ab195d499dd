"""What `quire top` says of addresses and answers that are not a server's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from quire.cli.main import main
from quire.core.errors import InputError
from quire.top.server import NoAnswer, Refused, Server


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server's address, and the paths and keys that it was asked with."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


DOCUMENT = json.dumps({"schema": "quire.inspect/1"}).encode()


@pytest.mark.parametrize("end", ["", "/", "/v1", "/inspect", "/v1/inspect", "/v1/"])
def test_an_address_is_taken_as_people_copy_it(end: str) -> None:
    with answering(200, DOCUMENT) as (address, asked):
        for url, key in ((address + end, "sk-mine"), (address.removeprefix("http://") + "/behind/a/proxy" + end, "")):
            with closing(Server(url, key)) as server:
                server.document()
    assert asked == [("/v1/inspect", "Bearer sk-mine"), ("/behind/a/proxy/v1/inspect", None)]


@pytest.mark.parametrize("url", ["", "http://", "ftp://x", "http://x:99999", "http://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"give one such as http://127.0.0.1:8000"):
        Server(url)


@pytest.mark.parametrize(
    ("status", "body", "key", "kind", "why"),
    [
        (401, error("invalid_api_key", "no"), "", Refused, "needs a key: set it as QUIRE_API_KEY"),
        (401, error("invalid_api_key", "no"), "sk-x", Refused, "does not know this key"),
        (404, error("not_found", "no path"), "", Refused, r"has no /v1/inspect \(status 404\)"),
        (200, b"<html>hello</html>", "", Refused, r"has no /v1/inspect \(status 200\)"),
        (502, b"bad gateway", "", Refused, r"\(status 502\)"),
        (503, error("draining", "the server stops"), "", NoAnswer, "answers 503: the server stops"),
        (200, b'{"schema": "quire.inspect/9", "version": "9.1"}', "", Refused, "quire.inspect/9 of Quire 9.1"),
        (200, b"[]", "", Refused, "no Quire server"),
    ],
)
def test_an_answer_that_is_no_document_says_what_to_do(
    status: int, body: bytes, key: str, kind: type[Exception], why: str
) -> None:
    with (
        answering(status, body) as (address, _),
        closing(Server(address, key)) as server,
        pytest.raises(kind, match=why) as found,
    ):
        server.document()
    assert "\n" not in str(found.value)
    assert key not in str(found.value) or not key


def test_a_connection_that_was_lost_is_made_anew() -> None:
    with answering(200, DOCUMENT) as (address, _):
        server = Server(address)
        server.document()
    with pytest.raises(NoAnswer, match=r"cannot reach .*: Connection refused; is quire serve running there"):
        server.document()


@pytest.mark.parametrize("arguments", [["--once"], []])
def test_the_command_ends_with_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Where no server is, and standard output is a pipe."""
    assert main(["top", "http://127.0.0.1:9", *arguments]) == 1
    assert capsys.readouterr().err.startswith("quire: cannot reach http://127.0.0.1:9: Connection refused")
