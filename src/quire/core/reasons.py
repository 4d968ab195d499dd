"""Why something is as it is: a code, the requests that it names, and numbers. `sentences.py` makes English of it.

Code decides by codes and never by sentences; what a reader may not see is left out of the value before it is rendered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

SHEETS_FOR = "sheets for "
"""Begins the name of a number: sheets that a kind needs."""
ANOTHER = "another"
"""Stands for a request whose name the reader may not see."""


class Why(str, Enum):
    """Codes: labels of metrics and values in JSON."""

    __hash__ = str.__hash__

    # why a request waits
    QUEUED = "queued"
    ROWS = "rows"
    STEP_TOKENS = "step_tokens"
    PREFIX = "prefix"
    MEMORY = "memory"
    CACHED_FIRST = "cached_first"
    FIRST_PAGE = "first_page"
    MUST_STAY = "must_stay"
    PREEMPTED = "preempted"
    LOAD_FAILED = "load_failed"
    IN_LINE = "in_line"
    ANOTHER_ENGINE = "another_engine"
    # how a request stands that has a row
    LOADING = "loading"
    RUNNING = "running"
    # why it is refused
    NEVER_FITS = "never_fits"
    # for whom one is preempted
    NEEDS_PAGES = "needs_pages"
    # why a load failed
    NO_ANSWER = "no_answer"
    TIER = "tier"
    # why nothing of a prompt was found
    NO_OVERLAP = "no_overlap"
    BELOW_UNIT = "below_unit"
    TAIL_EVICTED = "tail_evicted"
    CHECKPOINT_ABSENT = "checkpoint_absent"
    SCOPE = "scope"
    DISABLED = "disabled"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class Reason:
    code: Why
    requests: tuple[str, ...] = ()
    """Other requests that it is about."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    because: Reason | None = None
    detail: str = ""
    """Words of somebody else, such as a tier's error message. Nothing is read from them."""


QUEUED = Reason(Why.QUEUED)


@dataclass(frozen=True, slots=True)
class WayBack:
    """How a preempted request gets its memory back: the cheaper of a load and computing. None: not measured yet."""

    tokens: int
    size_bytes: int
    load_seconds: float | None
    compute_seconds: float | None

    @property
    def is_load(self) -> bool:
        """What is not measured yet is tried."""
        if self.load_seconds is None or self.compute_seconds is None:
            return True
        return self.load_seconds <= self.compute_seconds

    @property
    def numbers(self) -> dict[str, int]:
        """A cost that was not measured is left out."""
        costs = {"load_microseconds": self.load_seconds, "compute_microseconds": self.compute_seconds}
        known = {name: round(1e6 * seconds) for name, seconds in costs.items() if seconds is not None}
        return {"to_tier": int(self.is_load), **known}


@dataclass(frozen=True, slots=True)
class KindShort:
    """One kind on one stage: what a request needs to start and stay, what is there, and who holds the rest."""

    stage: int
    kind: str
    needs_pages: int
    free_pages: int
    """In sheets of this kind, and in those that are free."""
    awaited_pages: int
    """That running requests are likely to take still."""
    requests: tuple[tuple[str, int], ...]
    """(request, pages), the greatest first."""
    others: tuple[tuple[str, int], ...] = ()
    """(holder, pages): `cache`, `pins` and `backend` for what these alone hold, and the other requests together."""

    @property
    def short_pages(self) -> int:
        return max(0, self.needs_pages + self.awaited_pages - self.free_pages)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits, who holds what it lacks, and when it can run."""

    request: str
    status: str
    """waiting, loading, running"""
    reason: Reason
    way_back: WayBack | None = None
    """After it was preempted, with a tier."""
    kinds: tuple[KindShort, ...] = ()
    steps: int = 0
    """At most so many steps are launched before the one that it runs in, whatever arrives; 0 if it runs."""
    load_seconds: float = 0.0
    """Those before it wait for a tier for at most so many seconds on top."""
    after: tuple[str, ...] = ()
    """Requests that must have ended before there is room for it and for those before it in line."""


def without_others(reason: Reason, own: Collection[str]) -> Reason:
    """For a reader who may know of his own requests alone: no other's name, no words of a tier, and not that another
    tenant asked something alike."""
    return replace(
        reason,
        code=Why.NO_OVERLAP if reason.code is Why.SCOPE else reason.code,
        requests=tuple(name if name in own else ANOTHER for name in reason.requests),
        because=None if reason.because is None else without_others(reason.because, own),
        detail="",
    )


def explained_without_others(found: Explanation, own: Collection[str]) -> Explanation:
    """The same for a whole explanation."""

    def shown(name: str) -> str:
        return name if name in own else ANOTHER

    kinds = [replace(one, requests=tuple((shown(name), pages) for name, pages in one.requests)) for one in found.kinds]
    reason, after = without_others(found.reason, own), tuple(map(shown, found.after))
    return replace(found, reason=reason, kinds=tuple(kinds), after=after)
