"""What would happen to a request if it came now: whether it fits, what it would reuse, and what is ahead of it.

    ask(engine, request) ──▶ Room          nothing is queued, kept, evicted or counted

For routers, which ask several engines before they choose one. Prefixes are looked up in the request's scope alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.request import Request
from quire.engine.engine import Engine
from quire.explain.request import tokens_left
from quire.plan import bound
from quire.prefix.keys import keys_of
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Room:
    """The prospects of a request, in tokens and steps."""

    fits: bool
    """It could run alone: else it is refused whenever it comes."""
    is_queue_full: bool
    """It would be refused now."""
    prompt_tokens: int
    pool_tokens: int = 0
    """Of its prompt, in the pool."""
    coming_tokens: int = 0
    """Further ones, which a running request is computing."""
    tier_tokens: int = 0
    """Further ones than those in the pool, which a tier can load."""
    tokens_ahead: int = 0
    """Tokens that running and waiting requests have to compute before they all generate."""
    running: int = 0
    waiting: int = 0
    most_steps: int = 0
    """The most steps that are launched before the one that it starts in, whatever arrives."""
    most_load_seconds: float = 0.0
    """The most seconds that requests before it wait for a tier, in addition."""

    @property
    def reused_tokens(self) -> int:
        """Of its prompt, found in the pool, computed by others or loaded."""
        return self.pool_tokens + max(self.coming_tokens, self.tier_tokens)


def ask(engine: Engine, request: Request) -> Room:
    """Changes nothing."""
    scheduler, length = engine.scheduler, len(request.prompt)
    is_full = len(scheduler.queue) >= scheduler.queue.bound
    if not bound.admits(scheduler.plan, request.limit):
        return Room(False, is_full, length)
    pool, coming, tier = _reused(scheduler, request)
    everyone = [*scheduler.running.tickets.values(), *scheduler.queue]
    return Room(
        True,
        is_full,
        length,
        pool,
        coming,
        tier,
        _tokens_ahead(scheduler),
        len(scheduler.running.tickets),
        len(scheduler.queue),
        engine.overlap * tokens_left(scheduler, everyone),
        sum(scheduler.loads.seconds_for(one.request.limit) for one in everyone),
    )


def _reused(scheduler: Scheduler, request: Request) -> tuple[int, int, int]:
    """Tokens of the prompt in the pool; further ones that a row computes; further ones in a tier."""
    reuse, index = scheduler.reuse, scheduler.reuse.index
    ticket = Ticket(request, 0, (0, 0))
    if index.disabled or not ticket.may_reuse:
        return 0, 0, 0
    ticket.root = reuse.root_of(request.scope)
    ticket.keys = keys_of(ticket.root, request.prompt, index.unit)
    pool = ticket.hit_tokens = index.find(ticket.keys, ticket.root, request.prompt).tokens
    computing = reuse.junctions.computing(ticket.keys, index.nodes.depth(ticket.keys))
    coming = 0 if computing is None else computing[1] * index.unit
    most = len(request.prompt) - 1
    return pool, max(0, min(coming, most) - pool), max(0, scheduler.loads.offer(ticket) - pool)


def _tokens_ahead(scheduler: Scheduler) -> int:
    state, rows = scheduler.rows, scheduler.running.order()
    running = int((state.known[rows] - state.computed[rows]).clip(0).sum())
    return running + sum(one.known - one.cached for one in scheduler.queue)
