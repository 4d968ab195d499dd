"""The ports of hand-over: one engine computes a prompt, another goes on from it.

    decode engine ── Source.ask ──▶ wire ──▶ Desk.ask ── prefill engine
                                               │ computes the prompt, holds its records in host memory
    a load reads ◀── pieces ── wire ◀──────── Errand.offer, until fetched or given up

Neither side needs the other: a request whose hand-over fails, or is late, is computed where it came in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from quire.core.errors import InputError
from quire.core.request import Tokens

LEAST_SECRET_BYTES = 16


class Role(str, Enum):
    PREFILL = "prefill"
    """Computes prompts for others, beside requests of its own."""
    DECODE = "decode"
    """Asks another engine to compute its prompts."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What an operator chooses about it."""

    role: Role
    host: str
    """Of the prefill engine: it listens there, a decode engine connects to it."""
    port: int
    secret: Path
    """A file with what both sides know and nobody else does."""
    seconds: float = 30.0
    """A prompt that is not computed by then is computed where it came in."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise InputError(f"--peer-seconds {self.seconds:g} is out of range: give a number above 0")

    def read_secret(self) -> bytes:
        try:
            secret = self.secret.read_bytes().strip()
        except OSError as error:
            raise InputError(f"cannot read --peer-secret {self.secret}: {error.strerror}") from None
        if len(secret) < LEAST_SECRET_BYTES:
            raise InputError(
                f"--peer-secret {self.secret} has {len(secret)} bytes: give at least {LEAST_SECRET_BYTES} random ones"
            )
        return secret


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise InputError(f"{text!r} is no address: write HOST:PORT")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class Offer:
    """Records of a prompt's first tokens, held in host memory."""

    tokens: int
    records: tuple[tuple[memoryview, ...], ...]
    """Units in order where a kind grows, then the boundary where one does not."""


@dataclass(slots=True, eq=False)
class Errand:
    """A prompt that an engine computes for another one."""

    name: str
    scope: str
    prompt: Tokens
    """What is to be handed over, and one token more."""
    seconds: float
    is_over: threading.Event = field(default_factory=threading.Event)
    """There is an offer, or a reason why not."""
    offer: Offer | None = None
    reason: str = ""


class Desk(Protocol):
    """Of a prefill engine; called from threads of the wire."""

    @property
    def turned_at(self) -> float:
        """When the engine's loop was last seen to turn, by `time.monotonic`."""
        ...

    def ask(self, scope: str, prompt: Tokens, seconds: float) -> Errand: ...

    def give_up(self, errand: Errand) -> None:
        """Nobody wants it any more, however far it is: what it holds is let go."""
        ...


class Source(Protocol):
    """Of a decode engine: where prompts are computed."""

    def boundary(self, prompt_tokens: int) -> int:
        """How many tokens of such a prompt the other side could hand over, as far as is known. A question."""
        ...

    def lacking(self, prompt_tokens: int) -> str:
        """What the other side does not keep of such a prompt; empty: nothing."""
        ...

    def ask(self, request: str, scope: str, prompt: Tokens, keys: Sequence[bytes], seconds: float) -> str:
        """Waits until the prompt's records can be read; else why they cannot. Raises if the other side is lost."""
        ...

    def release(self, request: str) -> None:
        """Nobody reads them any more, or asks for them."""
        ...
