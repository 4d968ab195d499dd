"""Hand-over between engines, as a part of the third step and after the last one.

decode    PeerSource, a tier of the stack ──▶ HandOver ──▶ hooks
prefill   engine + stack ──▶ Prefills ◀── PeerServer (listens) ──▶ hooks
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quire.build.tiers import Order, attach
from quire.core.errors import InputError
from quire.core.version import __version__
from quire.engine.engine import Engine
from quire.handover.decode_side import HandOver
from quire.handover.hooks import HandOverHooks
from quire.handover.portable import Portable
from quire.handover.prefill_side import Prefills
from quire.handover.wakeup import Wakeup
from quire.options.peer import Peer, Role
from quire.options.tiers import Tiers
from quire.plan.plan import Plan
from quire.tiers.stack import Stack

if TYPE_CHECKING:
    from quire.worker.pages.arena import Arena
    from quire.worker.pages.staging import Staging


@dataclass(frozen=True, slots=True, eq=False)
class AttachedTiers:
    """The caches outside the pool; without any, an engine has none of these."""

    stack: Stack | None = None
    staging: Staging | None = None
    hooks: HandOverHooks = field(default_factory=HandOverHooks)
    """Those of a prefill engine are made after the engine."""


def fingerprint_of(plan: Plan, identity: str) -> str:
    """`identity`: of the model that computes the records (`quire.build.identity`)."""
    return Portable(plan).fingerprint(identity, __version__)


def attach_tiers(plan: Plan, arena: Arena, tiers: Tiers, identity: str, order: Order | None = None) -> AttachedTiers:
    """Host memory and the stores below it. The peer of a decode engine is the last of them. `order`: as of `attach`."""
    if tiers.is_empty:
        return AttachedTiers()
    if tiers.peer is None:
        return AttachedTiers(*attach(plan, arena, tiers, identity, order=order))
    if plan.no_reuse_because:
        raise InputError(f"{plan.model} cannot be handed over: {plan.no_reuse_because}; leave --role out")
    if tiers.peer.role is Role.DECODE:
        return _attach_source(plan, arena, tiers, tiers.peer, identity)
    wakeup = Wakeup()  # records of a prompt may arrive after its last step
    return AttachedTiers(*attach(plan, arena, tiers, identity, wakeup.notify), HandOverHooks(wakeup))


def _attach_source(plan: Plan, arena: Arena, tiers: Tiers, peer: Peer, identity: str) -> AttachedTiers:
    from quire.movers.peer import PeerSource

    wakeup, fingerprint = Wakeup(), fingerprint_of(plan, identity)
    source = PeerSource((peer.host, peer.port), peer.read_secret(), plan, fingerprint)
    stack, staging = attach(plan, arena, replace(tiers, connectors=(*tiers.connectors, source)), identity)
    hand_over = HandOver(stack, stack.tiers[-1], source, peer.seconds, wakeup.notify)
    return AttachedTiers(stack, staging, HandOverHooks(wakeup, hand_over))


def loop_hooks(engine: Engine, plan: Plan, attached: AttachedTiers, peer: Peer | None, identity: str) -> HandOverHooks:
    """The hooks of the engine's loop. A prefill engine starts to listen here."""
    if peer is None or peer.role is not Role.PREFILL:
        return attached.hooks
    from quire.movers.offering import PeerServer

    stack, wakeup = attached.stack, attached.hooks.wakeup
    assert stack is not None, "a peer needs host memory"
    assert wakeup is not None, "a stored record wakes the loop"
    prefills, fingerprint = Prefills(plan, engine, stack, wakeup.notify), fingerprint_of(plan, identity)
    try:
        server = PeerServer((peer.host, peer.port), peer.read_secret(), plan, fingerprint, prefills)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise InputError(f"cannot listen for peers at {peer.host}:{peer.port}: {why}; choose another --peer") from None
    return HandOverHooks(wakeup, prefills=prefills, server=server)
