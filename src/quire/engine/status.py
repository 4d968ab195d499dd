"""Where an engine stands: what metrics show. A question, answered in plain values that can travel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.engine.engine import Engine
from quire.scheduler.waiting import JUST_CAME

WAITING_REASONS = {
    JUST_CAME: "row",
    "rows are taken": "row",
    "those before it use up the step": "budget",
    "is computing its prefix": "prefix",
    "comes back only if it can stay": "preempted",
    "exceed the pool": "memory",
    "more of their prompt in the cache": "cached",
    "no page is free": "page",
    "its load failed": "load",
    "needs its pages": "preempted",
}
"""What a reason of the scheduler contains, and the word that stands for it in metrics."""


@dataclass(frozen=True, slots=True)
class KindStatus:
    """Pages of one kind on one stage. Used, cached, pinned, backend and free add up to what its sheets hold."""

    stage: int
    kind: str
    sheets: int
    used_pages: int
    cached_pages: int
    """Held by the cache and by no request."""
    pinned_pages: int
    backend_pages: int
    free_pages: int


@dataclass(frozen=True, slots=True)
class Status:
    steps: int
    running: int
    waiting: Mapping[str, int]
    """By reason."""
    free_sheets: tuple[int, ...]
    """By stage that keeps anything."""
    kinds: tuple[KindStatus, ...]
    events: Mapping[tuple[str, str], int]
    """By what happened and why: how often."""
    sums: Mapping[tuple[str, str], int]
    """By what happened and the name of a number: all of them added up."""


def status_of(engine: Engine) -> Status:
    scheduler = engine.scheduler
    return Status(
        steps=scheduler.steps,
        running=len(scheduler.tickets),
        waiting=Counter(reason_word(waiting.reason) for waiting in scheduler.queue),
        free_sheets=tuple(memory.pool.free_sheets for memory in scheduler.memories),
        kinds=tuple(
            _kind(memory, stage, kind)
            for stage, memory in enumerate(scheduler.memories)
            for kind in range(len(memory.stage.kinds))
        ),
        events={(what.value, reason): count for (what, reason), count in engine.counters.events.items()},
        sums={(what.value, name): total for (what, name), total in engine.counters.sums.items()},
    )


def reason_word(reason: str) -> str:
    """Reasons name requests; metrics need a few words that repeat."""
    return next((word for part, word in WAITING_REASONS.items() if part in reason), "other")


def _kind(memory: StageMemory, stage: int, kind: int) -> KindStatus:
    shelf = memory.pool.shelves[kind]
    used, cached, pinned, backend = (shelf.count(holder) > 0 for holder in Holder)
    return KindStatus(
        stage=stage,
        kind=memory.stage.kinds[kind].name,
        sheets=int((memory.pool.owner == kind).sum()),
        used_pages=int(used.sum()),
        cached_pages=int((cached & ~used).sum()),
        pinned_pages=int((pinned & ~used & ~cached).sum()),
        backend_pages=int((backend & ~used & ~cached & ~pinned).sum()),
        free_pages=shelf.free_pages,
    )
