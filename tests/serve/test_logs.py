"""Lines of the log: JSON for programs, text for people."""

from __future__ import annotations

import io
import json
import logging
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from quire.options.run import RunOptions
from quire.serve import engine_process, logs
from quire.serve.messages import EngineSetup, Failed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    loggers = [logs._logger, *map(logging.getLogger, logs.OTHERS)]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("form", "stream", "is_text"),
    [
        ("auto", Terminal, True),
        ("auto", io.StringIO, False),
        ("json", Terminal, False),
        ("text", io.StringIO, True),
    ],
)
def test_lines_are_text_on_a_terminal_and_json_elsewhere_unless_chosen(
    form: str, stream: type[io.StringIO], is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream())
    logs.set_up("info", form)
    logs.write("request", path="/v1/models", status=200, tenant="two words", error=None, finish=["stop"])
    line = logs.sys.stderr.getvalue()  # type: ignore[attr-defined]
    if is_text:
        rest = line.partition(" ")[2]
        assert rest == 'info request path=/v1/models status=200 tenant="two words" finish=["stop"]\n'
    else:
        assert json.loads(line).items() >= {"event": "request", "level": "info", "status": 200, "error": None}.items()


def test_no_value_can_write_a_line_or_a_colour_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    logs.set_up("info", "text")
    logs.write("request", path="/a\n14:00:00 error\x1b[31m", tenant="a=b", request="")
    line = logs.sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert line.endswith('tenant="a=b" request=""\n')


class OneSetup:
    """A connection to an engine that gets its setup, and nothing else."""

    def __init__(self, setup: EngineSetup, ours: socket.socket) -> None:
        self._setup, self._ours, self.sent = setup, ours, list[Any]()

    def fileno(self) -> int:
        return self._ours.fileno()

    def poll(self, timeout: float = 0.0) -> bool:
        return bool(select.select([self._ours], [], [], timeout)[0])

    def recv(self) -> EngineSetup:
        return self._setup

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.story
@pytest.mark.parametrize("level", list(logs.LEVELS))
def test_the_level_reaches_the_engines_process(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There all of Quire's loggers have it, other packages' at least warning. The engine logged warnings alone,
    whatever the option said."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    setup = EngineSetup(tmp_path / "no model", {}, RunOptions(), None, "json", level)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SystemExit):
        engine_process.main(connection := cast("Any", OneSetup(setup, ours)))
    assert isinstance(connection.sent[0], Failed)
    for name in ("quire.serve", "quire.tiers", "quire.text", "quire.recording"):
        assert logging.getLogger(name).level == logs.LEVELS[level]
    assert logging.getLogger("uvicorn.error").level == max(logs.LEVELS[level], logging.WARNING)
