"""Requests in progress, as a process that speaks HTTP sees them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from quire.core.request import Request
from quire.serve.away import EngineAway
from quire.serve.mailbox import Mailbox
from quire.serve.messages import RequestUpdate
from quire.traces.traced import Parent

MOST_ENGINES = 3
"""A request that waits is given to this many engines: should it be what ends them, it ends too."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request in progress, and when it generated what."""

    request: Request
    updates: Updates
    number: int = 0
    """Its place in the call."""
    span: Parent | None = None
    """What its phases belong to, if they are wanted."""
    sent_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    last_at: float | None = None
    output_tokens: int = 0
    hit_tokens: int | None = None
    """Tokens of the prompt found in the cache; None: it has not started."""
    engines: int = 1
    """To which it was given, one after another."""

    @property
    def can_wait(self) -> bool:
        """Whether the next engine may have it: no engine has started it."""
        return self.hit_tokens is None and self.engines < MOST_ENGINES


Update = tuple[int, ...] | RequestUpdate | EngineAway
"""Tokens alone, or whatever else there is to say."""
Updates = Mailbox[tuple[PendingRequest, Update]]
"""Of the requests of one call."""
