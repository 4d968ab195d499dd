"""Where the checker looks into a scheduler for what decides who is let in: a part of `state.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.check import state
from quire.check.definitions import Ints
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler


class Preference(NamedTuple):
    """What decides when a waiting request is let in, beside claims."""

    cached: int
    """Tokens of its prompt that it would find in the prefix index."""
    turn: int
    """Admissions after which it was due in the order of arrival."""
    hot_share: float
    """Of the pool, what its admission leaves to prefixes that others in the queue would use."""
    is_shared: bool
    """Whether running requests share pages, also with leases, or it would."""


def preference_of(scheduler: Scheduler, name: str) -> Preference:
    """Of a request that waits, or did until just now."""
    one = scheduler.queue.find(name) or scheduler.running.tickets[scheduler.rows.row_of[name]]
    share = scheduler.reuse.index.awaited.share(one.awaits)
    is_shared = one.awaits is not None or any(shared_pages(scheduler, one))
    return Preference(one.cached, one.turn, share, is_shared)


def shared_pages(scheduler: Scheduler, one: Ticket) -> list[int]:
    """Of every kind of every stage, one after another: pages that running requests hold in addition to the first of
    them, and that this one would, and those of either that are leased; none of kinds that let go of pages again."""
    place, by_key = one.awaits, scheduler.reuse.index.nodes
    chain = one.chain if place is not None and by_key.key[place.node] == place.key else one.chain[:0]
    counts = []
    for stage, memory in enumerate(scheduler.memories):
        for kind, table in enumerate(memory.tables):
            held = [table.held(row) for row in scheduler.rows.requests]
            all_pages = np.concatenate([*held, np.empty(0, dtype=np.int64)])
            shared = len(all_pages) - len(set(all_pages.tolist()))
            kept = _pages_of(scheduler, stage, kind, chain)
            shared += len(kept & set(all_pages.tolist()))
            for_all = kept.union(all_pages.tolist())
            leases = (one.chain for one in scheduler.reuse.index.leases.held.values())
            leased: set[int] = set().union(*(_pages_of(scheduler, stage, kind, own) for own in leases))
            counts.append(shared + len(leased & for_all) if table.kind.grows else 0)
    return counts


def _pages_of(scheduler: Scheduler, stage: int, kind: int, chain: Ints) -> set[int]:
    """Pages of one kind that the index keeps along a chain."""
    if not len(chain):
        return set()
    return set(
        state.kept_pages(scheduler, stage, kind)[chain][state.present(scheduler, stage, kind)[chain]].ravel().tolist()
    )
