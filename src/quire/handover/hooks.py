"""What an engine's loop does about hand-over, once per iteration.

decode    requests wait in `HandOver` until another engine has computed their prompts
prefill   `Prefills` has prompts that this engine computes for others; a server receives them
neither   the hooks do nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.core.events import Event
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.handover.decode_side import HandOver
from quire.handover.prefill_side import Prefills
from quire.handover.wakeup import Wakeup


class Server(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class HandOverHooks:
    """For the loop of one engine; without any of its parts it does nothing."""

    wakeup: Wakeup | None = None
    """Wakes an idle loop, if there is anything to wake it for."""
    hand_over: HandOver | None = None
    prefills: Prefills | None = None
    server: Server | None = None

    def take(self, engine: Engine, request: Request) -> bool:
        """Whether a request waits for another engine now; `turn` returns it later."""
        return self.hand_over is not None and self.hand_over.take(engine, request)

    def turn(self) -> list[Request]:
        """Requests that are to be submitted now."""
        if self.wakeup is not None:
            self.wakeup.clear()
        if self.prefills is not None:
            self.prefills.turn()
        return self.hand_over.turn() if self.hand_over is not None else []

    def cancel(self, name: str) -> None:
        if self.hand_over is not None:
            self.hand_over.cancel(name)

    def is_waiting(self, name: str) -> bool:
        return self.hand_over is not None and name in self.hand_over

    def counters(self) -> dict[str, int]:
        """Hand-overs by how they ended, and those that wait."""
        side = self.hand_over if self.hand_over is not None else self.prefills
        return {**side.counters, "waiting": len(side)} if side is not None else {}

    def on_event(self, event: Event) -> None:
        """Listens to the engine's events."""
        if self.hand_over is not None:
            self.hand_over.on_event(event)

    def close(self) -> None:
        """Ends threads and connections."""
        for part in (self.server, self.hand_over):
            if part is not None:
                part.close()
