"""An explanation as values: why a request waits, what it lacks, which requests hold that, and when it can run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from quire.core.reasons import Reason, WayBack, Why

ANOTHER = "another"
"""Stands for a request whose name the reader may not see."""


@dataclass(frozen=True, slots=True)
class KindShort:
    """One kind on one stage: what a request needs to start and stay, what is free, and what holds the rest."""

    stage: int
    kind: str
    needs_pages: int
    free_pages: int
    """In sheets of this kind, and in those that are free."""
    awaited_pages: int
    """Pages that running requests are likely to take in addition."""
    requests: tuple[tuple[str, int], ...]
    """(request, pages), the greatest first."""
    others: tuple[tuple[str, int], ...] = ()
    """(holder, pages): `cache`, `pins` and `backend` for what only these hold, and all other requests together."""

    @property
    def short_pages(self) -> int:
        return max(0, self.needs_pages + self.awaited_pages - self.free_pages)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits, what holds the pages that it lacks, and when it can run."""

    request: str
    status: str
    """waiting, loading, running"""
    reason: Reason
    way_back: WayBack | None = None
    """After a preemption, with a tier."""
    kinds: tuple[KindShort, ...] = ()
    steps: int = 0
    """The most steps that are launched before the one that it runs in, whatever arrives; 0 if it runs."""
    load_seconds: float = 0.0
    """The most seconds that requests before it wait for a tier, in addition."""
    after: tuple[str, ...] = ()
    """Requests that must have ended before there is room for it and for those queued before it."""


def explained_without_others(found: Explanation, own: Collection[str]) -> Explanation:
    """The same for a whole explanation."""

    def shown(name: str) -> str:
        return name if name in own else ANOTHER

    kinds = [replace(one, requests=tuple((shown(name), pages) for name, pages in one.requests)) for one in found.kinds]
    reason, after = without_others(found.reason, own), tuple(map(shown, found.after))
    return replace(found, reason=reason, kinds=tuple(kinds), after=after)


def without_others(reason: Reason, own: Collection[str]) -> Reason:
    """The reason for a reader who may only see the requests in `own`: without the names of others, a tier's messages,
    and the fact that another scope has the same prefix."""
    return replace(
        reason,
        code=Why.NO_OVERLAP if reason.code is Why.SCOPE else reason.code,
        requests=tuple(name if name in own else ANOTHER for name in reason.requests),
        because=None if reason.because is None else without_others(reason.because, own),
        detail="",
    )
