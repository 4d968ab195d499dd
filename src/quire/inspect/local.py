"""Serves the inspector's page over a recording to this machine, without any other package."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from quire.core.errors import InputError, QuireError
from quire.inspect.document import VIEWS, view_of
from quire.inspect.page import FILES, HEADERS, PAGE
from quire.inspect.recorded import Recorded

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""Under which a browser may call it: a foreign page's name may resolve to this machine too."""
Answer = tuple[int, str, bytes]


class LocalServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, recorded: Recorded, port: int) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen at {ADDRESS}:{port}: {error.strerror}; choose another --port") from None
        self.recorded = recorded
        self.one_at_a_time = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves is no error of ours."""

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/inspect"


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, media_type, content = self._answer()
        self.send_response(status)
        for name, value in {**HEADERS, "content-type": media_type, "x-content-type-options": "nosniff"}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The terminal has the address alone."""

    def _answer(self) -> Answer:
        if (self.headers.get("host") or "").rpartition(":")[0] not in NAMES:
            return _error(403, f"open it as {self.server.url}")
        asked = urlsplit(self.path)
        parts = [unquote(part) for part in asked.path.split("/")[1:]]
        if parts[0] in ("", "inspect") and len(parts) <= 2:
            name = parts[1] if len(parts) == 2 else PAGE
            return (200, FILES[name][1], FILES[name][0]) if name in FILES else _error(404, "there is no such file")
        if parts[:2] != ["v1", "inspect"]:
            return _error(404, "the path is not known: open /inspect")
        try:
            numbers = {name: int(values[0]) for name, values in parse_qs(asked.query).items()}
            with self.server.one_at_a_time:
                found = _found(self.server.recorded, parts[2:], numbers)
        except (QuireError, ValueError) as error:
            return _error(400, str(error))
        return _error(404, "it is not there at this step") if found is None else _json(200, found)


def _found(recorded: Recorded, parts: list[str], numbers: dict[str, int]) -> Any:
    step = numbers.get("step")
    if not parts:
        return recorded.at(step)
    if parts[0] == "what-if":
        return recorded.what_if(numbers.get("length"), numbers.get("pool_bytes"))
    if parts[0] == "requests" and len(parts) > 1:
        return recorded.request("/".join(parts[1:]), step)
    if parts[0] == "sheets" and len(parts) == 3:
        return recorded.sheet(int(parts[1]), int(parts[2]), step)
    return view_of(recorded.at(step), parts[0]) if parts[0] in VIEWS else None


def _json(status: int, value: Any) -> Answer:
    return status, "application/json", json.dumps(value, separators=(",", ":")).encode()


def _error(status: int, message: str) -> Answer:
    return _json(status, {"error": {"message": message}})


def serve(recorded: Recorded, port: int, announce: Callable[[str], None] = print, place: str = "") -> None:
    """Until it is interrupted. `place`: where the page opens."""
    with LocalServer(recorded, port) as server:
        announce(f"the inspector is at {server.url}{place} (Ctrl+C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            announce("")
