"""What an operator may choose about serving, beside the memory (`quire.plan.settings`). Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import InputError
from quire.core.rules import LOAD_SECONDS
from quire.core.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class ServeSettings:
    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str = ""
    """As clients call it."""
    keys: Path | None = None
    """None: everybody may come in."""
    queue: int = 1024
    """Requests that may wait, beside those that run."""
    step_seconds: float = 30.0
    """A step that takes longer is no progress."""
    request_seconds: float = 600.0
    drain_seconds: float = 60.0
    load_seconds: float = LOAD_SECONDS
    """And one more for each 256 MiB (`quire.core.rules`)."""
    body_bytes: int = 4 * MIB
    body_seconds: float = 30.0
    header_bytes: int = 16 * KIB
    header_seconds: float = 10.0
    connections: int = 2048
    log_level: str = "info"
    log_text: bool = False
    """Prompts and answers in the logs."""

    def __post_init__(self) -> None:
        for name in ("step_seconds", "request_seconds", "body_seconds", "header_seconds", "load_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}: give a number above 0")
        if not 0 <= self.drain_seconds < float("inf"):
            raise InputError(f"drain_seconds is {self.drain_seconds}: give 0 or more")
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"port is {self.port}: give 0 to 65,535; 0 takes a free one")
