"""Which other server a server works with: one computes the KV of prompts, the other continues from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quire.core.errors import InputError
from quire.options.flags import REQUIRED, option, read_texts
from quire.options.secret import read_secret


class Role(str, Enum):
    """What an engine does in a hand-over."""

    PREFILL = "prefill"
    """Computes prompts for others, in addition to its own requests."""
    DECODE = "decode"
    """Asks another engine to compute its prompts."""


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise InputError(f"{text!r} is no address: write HOST:PORT")
    return host, int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other server, and the role of this one."""

    role: Role = option(
        REQUIRED,
        "hand-over",
        "prefill: compute KV for decode servers; decode: fetch prompts' KV from a prefill server",
        choices=tuple(role.value for role in Role),
        parse=Role,
    )
    host: str = option(
        REQUIRED,
        "hand-over",
        "address of the prefill server, where it listens for decode servers",
        "--peer",
        fields=("host", "port"),
        parse=parse_address,
        metavar="HOST:PORT",
    )
    """Of the prefill server: it listens there, a decode server connects to it."""
    port: int
    secret: Path = option(
        REQUIRED,
        "hand-over",
        "file with the secret shared by both servers",
        "--peer-secret",
        parse=Path,
        metavar="FILE",
    )
    seconds: float = option(
        30.0,
        "hand-over",
        "time limit for the prefill server; after it the prompt is computed locally (default 30)",
        "--peer-seconds",
        parse=float,
        metavar="S",
    )

    def __post_init__(self) -> None:
        read_texts(self)
        if not 0 < self.seconds < float("inf"):
            raise InputError(f"--peer-seconds {self.seconds:g} is out of range: give a number above 0")

    def read_secret(self) -> bytes:
        return read_secret(self.secret, "--peer-secret")
