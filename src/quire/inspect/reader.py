"""Who reads a document: what belongs to other tenants is left out before anything is encoded.

An admin, the only tenant of a server without keys and the owner of a recording see everything. Others see their own
requests, lookups and leases; of all others they see how many there are and the memory that they hold, without names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from quire.core.reasons import Why
from quire.explain.explanation import OTHER_KEYS, explained_without_others, without_others
from quire.inspect.views import (
    WAITING,
    EngineView,
    LookupsView,
    RequestsView,
    RequestView,
    SheetView,
)

Value = TypeVar("Value")
Columns = TypeVar("Columns", RequestsView, LookupsView)


@dataclass(frozen=True, slots=True)
class Reader:
    """A tenant, and the names of its requests."""

    tenant: str
    own: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Others:
    """Requests of other tenants, added up."""

    running: int = 0
    waiting: int = 0
    size_bytes: int = 0


def for_reader(view: EngineView, reader: Reader) -> tuple[EngineView, Others]:
    """The view without what belongs to other tenants, and what was left out of the requests."""
    requests, others = _own_requests(view.requests, reader)
    shown = replace(
        view,
        requests=requests,
        lookups=_own_lookups(view.lookups, reader),
        leases=tuple(one for one in view.leases if one.owner == reader.tenant),
        tenants=tuple(one for one in view.tenants if one.tenant == reader.tenant),
    )
    return shown, others


def request_for_reader(view: RequestView, reader: Reader) -> RequestView:
    """One of the reader's requests, without the names of others."""
    found = view.explanation
    return replace(view, explanation=None if found is None else explained_without_others(found, reader.own))


def sheet_for_reader(view: SheetView, reader: Reader) -> SheetView:
    own = tuple(one for one in view.requests if one[0] in reader.own)
    rest = sum(pages for name, pages in view.requests if name not in reader.own)
    return replace(view, requests=own, others=(*([(OTHER_KEYS, rest)] if rest else []), *view.others))


def _own_requests(view: RequestsView, reader: Reader) -> tuple[RequestsView, Others]:
    own = np.array([tenant == reader.tenant for tenant in view.tenants], dtype=bool)
    waits = view.state == WAITING
    sizes = int(view.size_bytes[~own].sum())
    others = Others(int((~own & ~waits).sum()), int((~own & waits).sum()), sizes)
    return _own_reasons(_chosen(view, own, len(view.names)), reader), others


def _own_reasons(view: RequestsView, reader: Reader) -> RequestsView:
    """With the reasons of the requests that are left alone: the others' say why and after what other tenants wait."""
    has_reason = view.reason < len(view.reasons)
    kept, places = np.unique(view.reason[has_reason], return_inverse=True)
    reason = np.full(len(view.reason), len(kept))
    reason[has_reason] = places
    reasons = tuple(without_others(view.reasons[place], reader.own) for place in kept.tolist())
    return replace(view, reason=reason, reasons=reasons)


def _own_lookups(view: LookupsView, reader: Reader) -> LookupsView:
    """Sums are of the reader's lookups among the latest: those of all tenants would show, from one moment to the next,
    the length of a stranger's prompt and what of it was cached. That another scope has a prefix is not shown either."""
    own = np.array([name in reader.own for name in view.names], dtype=bool)
    chosen = _chosen(view, own, len(view.names))
    missed = {cause: column[own] for cause, column in view.missed_tokens.items() if column[own].any()}
    result = tuple(map(_without_scope, chosen.result))
    return replace(
        chosen,
        result=result,
        results=dict(Counter(result)),
        prompt_tokens=int(chosen.tokens.sum()),
        found_tokens=int(chosen.found.sum()),
        missed={cause: int(missed[cause].sum()) if cause in missed else 0 for cause in view.missed},
        missed_tokens=missed,
    )


def _without_scope(result: str) -> str:
    return Why.NO_OVERLAP.value if result == Why.SCOPE.value else result


def _chosen(view: Columns, which: Any, count: int) -> Columns:
    """The view with only these entries in all its columns."""
    changes: dict[str, Any] = {}
    for one in fields(view):
        column = getattr(view, one.name)
        if isinstance(column, np.ndarray):
            changes[one.name] = column[which]
        elif isinstance(column, tuple) and len(column) == count and one.name != "reasons":
            changes[one.name] = _those(column, which)
    return replace(view, **changes)


def _those(column: Sequence[Value], which: Any) -> tuple[Value, ...]:
    return tuple(value for value, is_chosen in zip(column, which.tolist(), strict=True) if is_chosen)
