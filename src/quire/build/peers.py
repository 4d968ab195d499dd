"""Puts a hand-over together: what stands beside an engine that computes prompts for others, or lets others do so.

prefill   engine + stack ──▶ Prefills ◀── PeerServer (listens)
decode    PeerSource (a tier of the stack) ──▶ HandOver ──▶ engine
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire.build.tiers import Tiers
from quire.core.bell import Bell
from quire.core.errors import InputError
from quire.core.events import Event
from quire.core.peer import Peer, Role
from quire.core.request import Request
from quire.core.version import __version__
from quire.engine.engine import Engine
from quire.handover.decode_side import HandOver
from quire.handover.portable import Portable
from quire.handover.prefill_side import Prefills
from quire.plan.plan import Plan
from quire.tiers.stack import Stack

if TYPE_CHECKING:
    from quire.movers.offering import PeerServer
    from quire.movers.peer import PeerSource


def fingerprint_of(plan: Plan, weights: str) -> str:
    """`weights`: tells models of one shape apart (`quire.build.identity`)."""
    return Portable(plan).fingerprint(weights, __version__)


@dataclass(slots=True, eq=False)
class Beside:
    """What an engine's loop asks once per turn; without a peer it does nothing."""

    bell: Bell | None = None
    """Rings when a turn of the loop is due."""
    source: PeerSource | None = None
    hand_over: HandOver | None = None
    prefills: Prefills | None = None
    server: PeerServer | None = None

    def take(self, engine: Engine, request: Request) -> bool:
        """Whether a request waits for another engine now; `turn` gives it back."""
        return self.hand_over is not None and self.hand_over.take(engine, request)

    def turn(self) -> list[Request]:
        """Requests that are to be submitted now."""
        if self.bell is not None:
            self.bell.hush()
        if self.prefills is not None:
            self.prefills.turn()
        return self.hand_over.turn() if self.hand_over is not None else []

    def cancel(self, name: str) -> None:
        if self.hand_over is not None:
            self.hand_over.cancel(name)

    def is_waiting(self, name: str) -> bool:
        return self.hand_over is not None and name in self.hand_over

    def counted(self) -> dict[str, int]:
        """Hand-overs by how they ended, and those that wait."""
        if self.hand_over is not None:
            return {**self.hand_over.counters, "waiting": len(self.hand_over)}
        return {**self.prefills.counters, "waiting": len(self.prefills)} if self.prefills is not None else {}

    def hear(self, event: Event) -> None:
        if self.hand_over is not None:
            self.hand_over.hear(event)

    def close(self) -> None:
        closing: list[Callable[[], None]] = [one.close for one in (self.server, self.hand_over) if one is not None]
        for close in closing:
            close()


def tiers_beside(beside: Beside, plan: Plan, tiers: Tiers, weights: str) -> Tiers:
    """The tiers of a decode engine: the other engine is one of them, asked last."""
    peer = tiers.peer
    if peer is None or peer.role is not Role.DECODE:
        return tiers
    from quire.movers.peer import PeerSource

    _require_reuse(plan)
    fingerprint = fingerprint_of(plan, weights)
    beside.source = PeerSource((peer.host, peer.port), peer.read_secret(), plan, fingerprint)
    return replace(tiers, connectors=(*tiers.connectors, beside.source))


def join_stack(beside: Beside, stack: Stack | None, peer: Peer | None) -> None:
    if stack is not None and peer is not None and beside.source is not None:
        beside.bell = Bell()
        beside.hand_over = HandOver(stack, stack.tiers[-1], beside.source, peer.seconds, beside.bell.ring)


def join_engine(
    beside: Beside, engine: Engine, plan: Plan, stack: Stack | None, peer: Peer | None, weights: str
) -> None:
    """A prefill engine listens from here on."""
    if stack is None or peer is None or peer.role is not Role.PREFILL:
        return
    from quire.movers.offering import PeerServer

    _require_reuse(plan)
    beside.bell = Bell()
    stack.wake = beside.bell.ring  # records of a prompt may come after its last step
    prefills = beside.prefills = Prefills(plan, engine, stack, beside.bell.ring)
    try:
        beside.server = PeerServer(
            (peer.host, peer.port), peer.read_secret(), plan, fingerprint_of(plan, weights), prefills
        )
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise InputError(f"cannot listen for peers at {peer.host}:{peer.port}: {why}; choose another --peer") from None


def _require_reuse(plan: Plan) -> None:
    if plan.no_reuse_because:
        raise InputError(f"{plan.model} cannot be handed over: {plan.no_reuse_because}; leave --role out")
