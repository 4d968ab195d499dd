"""What an engine shows of itself at one moment: frozen values, which another process reads and encodes as JSON.

EngineView ── StageView (one for each stage) ── KindView (one for each kind), Squares (a number for each sheet)
           ├── RequestsView   a column for each property, an entry for each request
           ├── LookupsView    the latest prefix lookups, in columns too
           └── LeaseView, TenantView

Columns are arrays or tuples: an engine with 10,000 sheets and 1,000 requests makes no object for each of them.
`document.py` encodes a view; docs/inspector.md describes the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.events import RequestEvent
from quire.core.reasons import Reason
from quire.explain.explanation import Explanation

Column = npt.NDArray[np.integer]
WAITING, LOADING, COMPUTING, GENERATING = range(4)
STATES = ("waiting", "loading", "computing", "generating")
"""Of a request. It computes while tokens of its prompt, or of its outputs after a preemption, are left."""
NOTHING = np.zeros(0, dtype=np.uint16)
"""A column of zeros: most pools have no leased or pinned page."""


@dataclass(frozen=True, slots=True)
class KindView:
    """Pages of one kind on one stage. Used, cached, pinned, backend and free pages add up to what its sheets hold."""

    kind: str
    page_tokens: int
    page_bytes: int
    pages_per_sheet: int
    sheets: int
    used_pages: int
    cached_pages: int
    """Held by the cache and by no request."""
    pinned_pages: int
    backend_pages: int
    free_pages: int
    leased_pages: int
    """Of the used and the cached pages: those that leases keep."""
    transfer_pages: int
    """Of the used pages: those of requests whose tokens a tier loads."""


@dataclass(frozen=True, slots=True, eq=False)
class Squares:
    """A number for each sheet. A column that is empty stands for zeros."""

    kind: Column
    """Place of its kind in `StageView.kinds`; their number if the sheet is free."""
    used: Column
    """Pages of the sheet, by state, as in `KindView`."""
    cached: Column
    leased: Column
    transfer: Column
    pinned: Column
    backend: Column


@dataclass(frozen=True, slots=True, eq=False)
class StageView:
    """The pool of one stage."""

    stage: int
    sheets: int
    sheet_bytes: int
    free_sheets: int
    lease_sheets: int
    """The most that leases may take."""
    kinds: tuple[KindView, ...]
    squares: Squares


@dataclass(frozen=True, slots=True, eq=False)
class RequestsView:
    """Requests that run, by row, then those that wait, in the order in which they will be admitted."""

    running: int
    waiting: int
    names: tuple[str, ...]
    """Of the first requests: a very long queue is cut."""
    client_ids: tuple[str, ...]
    """Names that clients gave them, as far as they are known."""
    tenants: tuple[str, ...]
    state: Column
    """Place in `STATES`."""
    prompt: Column
    known: Column
    """Tokens of the prompt and outputs."""
    computed: Column
    found: Column
    """Tokens found in the pool."""
    loaded: Column
    """Further tokens that a tier loaded."""
    likely: Column
    """The length that it is likely to reach, if it runs; else 0."""
    limit: Column
    preemptions: Column
    size_bytes: Column
    """Of its pages on one rank, pages that it shares included."""
    steps: Column
    """The most steps before the one that it starts in; 0 if it runs."""
    reason: Column
    """Why it waits: place in `reasons`; their number if it runs."""
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LookupsView:
    """Prefix lookups: totals since the engine started, and the latest ones, the newest first."""

    results: Mapping[str, int]
    """Admissions by result: `hit`, or why nothing was found."""
    prompt_tokens: int
    """Of accepted requests."""
    found_tokens: int
    missed: Mapping[str, int]
    """By cause: prompt tokens that were computed before and not found."""
    names: tuple[str, ...]
    step: Column
    tokens: Column
    """Of the prompt."""
    found: Column
    result: tuple[str, ...]
    missed_tokens: Mapping[str, Column]
    """By cause: of each of these lookups. Causes without any are left out."""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A prefix that stays until a time."""

    name: str
    owner: str
    """The tenant."""
    tokens: int
    size_bytes: int
    where: str
    """pool or host"""
    until: float
    """On the document's clock."""


@dataclass(frozen=True, slots=True)
class TenantView:
    """What a tenant is promised and has."""

    tenant: str
    weight: float
    served_tokens: float
    """Tokens computed for it, divided by its weight: the least served tenant goes next."""
    running: int
    waiting: int
    share_rows: float
    """Its share of the rows (batch slots) among the tenants that are active now."""
    size_bytes: int
    """Of the pages of its running requests."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineView:
    """All that an engine shows of itself."""

    at: float
    """`time.time()`; of a recording, seconds since it began."""
    cost_seconds: float
    """Processor time that making it took."""
    step: int
    """Steps launched so far."""
    rows: int
    """The most requests that run at once."""
    stages: tuple[StageView, ...]
    requests: RequestsView
    lookups: LookupsView
    leases: tuple[LeaseView, ...]
    tenants: tuple[TenantView, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Pages of one kind that a request holds."""

    stage: int
    kind: str
    sheets: tuple[int, ...]
    pages: tuple[int, ...]
    """On each of these sheets."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request: why it waits or runs, what happened to it, and where its pages are."""

    name: str
    explanation: Explanation | None
    """None: it has ended."""
    events: tuple[RequestEvent, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class SheetView:
    """Who holds the pages of one sheet."""

    stage: int
    sheet: int
    kind: str
    """Empty: the sheet is free."""
    pages: int
    requests: tuple[tuple[str, int], ...]
    """(request, pages)."""
    others: tuple[tuple[str, int], ...]
    """(`cache`, `pins` or `backend`, pages that only these hold); for a key, those of other keys' requests added up."""
