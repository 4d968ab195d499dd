"""Reasons as values: a code, the requests that it names, and numbers. `sentences.py` renders them in English.

Code decides by codes and never by sentences. What a reader may not see is removed from the value before rendering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

SHEETS_FOR = "sheets for "
"""Begins the name of a number: sheets that a kind needs."""


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
    LEASED = "leased"
    PREEMPTED = "preempted"
    LOAD_FAILED = "load_failed"
    IN_LINE = "in_line"
    ANOTHER_ENGINE = "another_engine"
    # state of a request that has a row
    LOADING = "loading"
    RUNNING = "running"
    # why it is refused
    NEVER_FITS = "never_fits"
    # why a request is preempted
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
    """Why something happened: a code, the requests that it names, numbers, and perhaps its own cause."""

    code: Why
    requests: tuple[str, ...] = ()
    """Other requests that it is about."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    because: Reason | None = None
    detail: str = ""
    """Text from elsewhere, such as a tier's error message. No code interprets it."""


QUEUED = Reason(Why.QUEUED)


@dataclass(frozen=True, slots=True)
class WayBack:
    """How a preempted request gets its KV back: the cheaper of loading and computing. None: not measured yet."""

    tokens: int
    size_bytes: int
    load_seconds: float | None
    compute_seconds: float | None

    @property
    def is_load(self) -> bool:
        """Whether it loads; also True while either cost is not measured yet."""
        if self.load_seconds is None or self.compute_seconds is None:
            return True
        return self.load_seconds <= self.compute_seconds

    @property
    def numbers(self) -> dict[str, int]:
        """The choice and its costs, for events; a cost that was not measured is left out."""
        costs = {"load_microseconds": self.load_seconds, "compute_microseconds": self.compute_seconds}
        known = {name: round(1e6 * seconds) for name, seconds in costs.items() if seconds is not None}
        return {"to_tier": int(self.is_load), **known}
