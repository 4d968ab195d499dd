"""The status of an engine, for metrics: plain values that can be sent to another process. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.engine.engine import Engine
from quire.warm.work import WarmWork


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
    """Counts of an engine at one moment."""

    steps: int
    running: int
    waiting: Mapping[str, int]
    """By the code of the reason."""
    free_sheets: tuple[int, ...]
    """By stage that keeps anything."""
    kinds: tuple[KindStatus, ...]
    events: Mapping[tuple[str, str], int]
    """By event and label: how often."""
    sums: Mapping[tuple[str, str], int]
    """By event and the name of a count: all of them added up."""
    leases: int = 0
    """Held now."""
    leased_bytes: int = 0
    """On one rank; pages that several leases need count once."""
    warm_waiting: int = 0
    """Prompts that an idle engine will compute."""


def status_of(engine: Engine, warm: WarmWork | None = None) -> Status:
    """Chunks of warm work are left out of the counts of requests and steps."""
    scheduler = engine.scheduler
    events, sums = engine.counters.events, engine.counters.sums
    if warm is not None:
        events.subtract(warm.counters.events)
        sums.subtract(warm.counters.sums)
    return Status(
        steps=scheduler.steps,
        running=len(scheduler.running.tickets),
        waiting=Counter(waiting.reason.code.value for waiting in scheduler.queue),
        free_sheets=tuple(memory.pool.free_sheets for memory in scheduler.memories),
        kinds=tuple(
            _kind(memory, stage, kind)
            for stage, memory in enumerate(scheduler.memories)
            for kind in range(len(memory.stage.kinds))
        ),
        events={(event.name, label): count for (event, label), count in events.items()},
        sums={(event.name, name): total for (event, name), total in sums.items()},
        leases=len(engine.leases()),
        leased_bytes=_leased_bytes(engine),
        warm_waiting=0 if warm is None else len(warm),
    )


def _leased_bytes(engine: Engine) -> int:
    index = engine.scheduler.reuse.index
    both = zip(index.memories, index.leases.pages, strict=True)
    return sum(kind.page_bytes * n for memory, own in both for kind, n in zip(memory.stage.kinds, own, strict=True))


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
