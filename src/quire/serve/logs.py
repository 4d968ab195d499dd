"""Structured logs on standard error: an event a line, as JSON or as text. Never a key, a prompt or a token's text.

A bug is logged by its place, not by its message: the text of an exception may quote a prompt.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
EVENTS = {
    "started": "the server listens",
    "engine_ready": "weights are loaded; `process`, `seconds` it took",
    "engine_died": "the engine's process ended; `exit_code`, `requests` that were under way",
    "engine_not_started": "no process could be made for it; `message`, `pause_seconds` until the next attempt",
    "front_ready": "an HTTP process takes connections; `front`, `process`, `seconds` it took",
    "front_died": "an HTTP process ended; `front`, `exit_code`, `requests` that were under way",
    "front_stuck": "an HTTP process does not answer, and is ended; `front`, `seconds`",
    "front_not_started": "no HTTP process could be made; `front`, `message`, `pause_seconds` until the next attempt",
    "engine_failed": "it could not boot; `message`",
    "engine_stalled": "no step has finished for `seconds`; `step`, `requests` that are stuck, `names` of the first",
    "engine_resumed": "steps finish again; `step`, `requests`",
    "books_do_not_balance": "the audit of an idle engine found a bug; `message`",
    "request": "an answer is complete; see below",
    "keys_unreadable": "the file of keys changed and cannot be read; `message`; the old keys stay",
    "draining": "a signal came; `requests` that are still under way",
    "stopped": "the server ends; `requests` that had to be cut off",
    "internal_error": "a bug in Quire; `where`, `exception`",
    "text": "grammars are refused, as the model's tokenizer cannot be read for them; `message`",
    "tier": "a tier or a hand-over failed, or works again; `message`",
    "recording": "a recording goes to another file, as `FILE` is there; or it ends, as it cannot be written; `message`",
    "spans": "OpenTelemetry's collector does not take spans, or takes them again; `message`",
    "http": "a connection that is no HTTP, one too many, or one that cannot be accepted; `message`",
}
"""By name: what it reports. Each appears in docs/operations.md."""
_QUOTED = set(' "=')
MOST_PATH = 128
"""Characters of an unknown path."""
OTHERS = {
    "quire.text": "text",
    "quire.tiers": "tier",
    "quire.recording": "recording",
    "quire.spans": "spans",
    "uvicorn.error": "http",
}
"""Other loggers, whose messages are events here."""
_logger = logging.getLogger("quire.serve")
_always: dict[str, Any] = {}
"""Fields of every line of this process."""


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        return json.dumps(
            {"time": stamp, "level": record.levelname.lower(), "event": _event(record), **_fields(record)}
        )


class _TextLines(logging.Formatter):
    """`14:02:11 info request method=GET path=/v1/models status=200`. Text with blanks or odd characters is quoted."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = (f"{name}={_shown(value)}" for name, value in _fields(record).items() if value is not None)
        return " ".join((stamp, record.levelname.lower(), _event(record), *fields))


def _event(record: logging.LogRecord) -> str:
    event: str = getattr(record, "event", None) or OTHERS[record.name]
    return event


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {"message": record.getMessage()})
    return {**_always, **fields}


def _shown(value: Any) -> str:
    is_plain = isinstance(value, str) and value and value.isascii() and value.isprintable() and not _QUOTED & set(value)
    return value if is_plain else json.dumps(value)


def set_up(level: str = "info", form: str = "auto", **always: Any) -> None:
    """`form`: text, json, or auto: text on a terminal. `always`: fields that every line gets. Other packages report
    only warnings, never the text of an exception."""
    _always.clear()
    _always.update(always)
    handler = logging.StreamHandler(sys.stderr)
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(_TextLines() if is_text else _JsonLines())
    for logger in (_logger, *map(logging.getLogger, OTHERS)):
        logger.handlers[:] = [handler]
        is_own = logger.name.startswith("quire.")
        logger.setLevel(LEVELS[level] if is_own else max(LEVELS[level], logging.WARNING))
        logger.propagate = False


def shown_path(path: str) -> str:
    """A path that a client made up, as a line of the log may have it: short, and printable ASCII alone."""
    shown = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in path[:MOST_PATH])
    return shown + ("…" if len(path) > MOST_PATH else "")


def write(event: str, level: str = "info", **fields: Any) -> None:
    assert event in EVENTS, event
    _logger.log(LEVELS[level], event, extra={"event": event, "fields": fields})


def write_bug(error: BaseException, **fields: Any) -> None:
    """Logs the place and the type of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-8:]]
    write("internal_error", "error", exception=type(error).__name__, where=where, **fields)
