"""`quire top` against a running server: as its key may see it, in a pipe and in a terminal, whatever happens."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from quire.top.parts import FREE
from quire.top.screen import frame
from quire.top.server import Server
from running_server import RunningServer, running_server
from serve_kit import CHAT, SIZE, body, wait_for_tokens
from terminal import terminal

pytestmark = pytest.mark.servers


def top(server: RunningServer, key: str = "", *more: str) -> tuple[int, str, str]:
    """In a pipe: exit code, standard output and standard error."""
    environment = {**os.environ, "QUIRE_API_KEY": key}
    command = [sys.executable, "-m", "quire.cli.main", "top", server.address, *more]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return found.returncode, found.stdout, found.stderr


def frame_of(server: RunningServer, key: str) -> str:
    """Without the time that a process takes to start."""
    with io.StringIO() as file, closing(Server(server.address, key)) as asked:
        Console(file=file, width=200).print(*frame(asked.document(), time.time()), sep="\n")
        return file.getvalue()


def test_a_pipe_gets_one_frame_of_plain_text(tiny_server: RunningServer, keys: Any) -> None:
    tiny_server.until("it is idle", tiny_server.is_idle)
    code, text, wrong = top(tiny_server, keys.alice)
    assert (code, wrong) == (0, "")
    assert " · ready · 0 running · 0 waiting" in text.splitlines()[0]
    assert FREE in text
    assert "no requests" in text
    assert "\x1b" not in text


def test_a_key_sees_its_own_requests_and_an_admin_all(tiny_server: RunningServer, keys: Any) -> None:
    tiny_server.until("it is idle", tiny_server.is_idle)
    asked = body(max_tokens=480, stream=True, ignore_eos=True)
    with (
        tiny_server.client(keys.alice) as client,
        client.stream("POST", CHAT, json=asked) as stream,
        tiny_server.slowed(),
    ):
        lines = stream.iter_lines()  # a stream whose reader is gone ends
        call = wait_for_tokens(lines, 2)["id"].partition("-")[2]
        tiny_server.until("it is shown", lambda: call in frame_of(tiny_server, keys.admin))
        asking = {"alice": keys.alice, "bob": keys.bob, "admin": keys.admin}
        seen = {name: frame_of(tiny_server, key) for name, key in asking.items()}
    assert [name for name, text in seen.items() if call in text] == ["alice", "admin"]
    assert "other tenants: 1 running, 0 waiting" in seen["bob"]
    assert re.search(rf"^{call}-0 +alice ", seen["admin"], re.MULTILINE)


@pytest.mark.parametrize(("key", "why"), [("", "needs a key"), ("sk-wrong", "does not know this key")])
def test_a_key_that_is_missing_or_unknown_is_one_line(tiny_server: RunningServer, key: str, why: str) -> None:
    code, text, wrong = top(tiny_server, key)
    assert (code, text) == (2, "")
    assert why in wrong
    assert wrong.count("\n") == 1


def test_a_frozen_engine_is_shown_as_frozen_with_its_requests(
    tiny_server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    """In a terminal, which is drawn anew meanwhile. Ctrl-C leaves it as it was."""
    tiny_server.until("it is idle", tiny_server.is_idle)
    asked = body(max_tokens=480, n=8, stream=True, ignore_eos=True)
    with (
        terminal("top", tiny_server.address, "--api-key", keys.admin) as screen,
        tiny_server.client(keys.alice) as client,
    ):
        screen.until("ready")
        with client.stream("POST", CHAT, json=asked) as stream:
            lines = stream.iter_lines()
            call = wait_for_tokens(lines, 2)["id"].partition("-")[2]
            with tiny_server.slowed():
                screen.until(call[:9])
                freeze_file.touch()
            try:
                place = screen.until("frozen")
                screen.until("has finished no step for", place)
                screen.until(call[:9], place)
            finally:
                freeze_file.unlink()
            screen.until("ready", len(screen.drawn))
        assert screen.interrupt() == 0
    assert "\x1b[?1049l" in screen.drawn[-200:], "the terminal's own screen is back"
    assert "Traceback" not in screen.drawn


def test_an_engine_that_died_is_shown_and_so_is_a_server_that_ended(tiny_folder: Path) -> None:
    """The last frame stays while there is nothing else; then a line says how old it is."""
    with running_server(str(tiny_folder), *SIZE, model="tiny") as server, terminal("top", server.address) as screen:
        screen.until("ready")
        os.kill(server.engine, signal.SIGKILL)
        screen.until("SIGKILL")
        place = screen.until("1 restarts")
        screen.until("ready", place)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        screen.until("is quire serve running there")
        screen.until("s old")
        assert screen.interrupt() == 0
