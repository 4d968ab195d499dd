"""Where events go: `tcp://*:5557`, and where readers ask for those that they missed: `,tcp://*:5558`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.core.errors import InputError

MOST_PORT = 65_535
EXAMPLE = "tcp://*:5557, or tcp://*:5557,tcp://*:5558 with a socket for replay"
_TCP = re.compile(r"tcp://(\*|\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_OWN = ("*", "0.0.0.0", "[::]", "127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class EventAddress:
    publish: str
    replay: str | None = None

    @property
    def is_bound(self) -> bool:
        """This process listens there; else it connects to a reader that listens."""
        match = _TCP.fullmatch(self.publish)
        return match is None or match.group(1) in _OWN


def event_address(text: str) -> EventAddress:
    publish, *rest = (one.strip() for one in text.split(","))
    if len(rest) > 1:
        raise InputError(f"{text!r} names {1 + len(rest)} addresses: give {EXAMPLE}")
    for one in (publish, *rest):
        _require_address(one)
    if rest and rest[0] == publish:
        raise InputError(f"events and replay cannot share {publish}: give {EXAMPLE}")
    return EventAddress(publish, rest[0] if rest else None)


def _require_address(text: str) -> None:
    if text.startswith("ipc://") and len(text) > len("ipc://"):
        return
    match = _TCP.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not an address: give {EXAMPLE}")
    if not 1 <= int(match.group(2)) <= MOST_PORT:
        raise InputError(f"{text!r}: port {match.group(2)} is out of range: give 1 to {MOST_PORT:,}")
