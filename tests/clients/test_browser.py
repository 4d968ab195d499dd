"""A web page of another origin, in headless Chromium, against `--allow-origin`."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from asked import ANSWER, MODEL, TEXT, WAIT_SECONDS
from conftest import PYTHON, SIZE
from running_server import running_server

PAGE = (Path(__file__).parent / "page.html").read_bytes()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
         "--disable-component-update", "--no-first-run")  # fmt: skip
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian's package: chromium)")


class Pages(BaseHTTPRequestHandler):
    """Serves the page, and receives what it found."""

    found: queue.Queue[Any]

    def do_GET(self) -> None:
        self._answer(PAGE)

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The test's output has no lines of requests."""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Of a server on this machine that has the page."""
    Pages.found = queue.Queue()
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{pages.server_port}"
        pages.shutdown()


def shown(origin: str, v1: str, profile: Path) -> Any:
    """What the page found."""
    address = f"{origin}/?{urlencode({'v1': v1, 'model': MODEL, 'text': TEXT})}"
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", address]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return Pages.found.get(timeout=WAIT_SECONDS)
    finally:
        browser.terminate()
        browser.wait(WAIT_SECONDS)


def test_a_page_of_an_allowed_origin_chats_and_streams(origin: str, folder: Path, tmp_path: Path) -> None:
    """The browser sends a preflight first, for the key and the JSON body."""
    with running_server(str(folder), *SIZE, "--allow-origin", origin, model=MODEL, python=PYTHON) as server:
        assert shown(origin, server.address + "/v1", tmp_path) == {"whole": ANSWER, "streamed": ANSWER}


def test_a_page_of_another_origin_reads_nothing(origin: str, v1: str, tmp_path: Path) -> None:
    """Without `--allow-origin` the browser refuses the call."""
    assert "Failed to fetch" in shown(origin, v1, tmp_path)["error"]
