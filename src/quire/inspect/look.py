"""An engine's view of itself, made when somebody asks. Changes nothing.

All that grows with the pool or with the number of requests is read as columns: for 10,000 sheets and 1,000 requests
this takes about as long as the scheduler takes for a step.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from quire.core.events import RequestAccepted, RequestAdmitted
from quire.engine.engine import Engine
from quire.inspect.requests import requests_of
from quire.inspect.squares import stages_of
from quire.inspect.views import EngineView, LeaseView, LookupsView, RequestsView, TenantView
from quire.prefix.gap import CAUSES
from quire.warm.work import NAME

MOST_LOOKUPS = 200


def look(engine: Engine, at: float | None = None, now: float | None = None) -> EngineView:
    """`at`: the time to write into it, if it is not now; `now`: the engine's clock then, which a replay cannot read."""
    begun = time.thread_time()
    requests = requests_of(engine)
    at = time.time() if at is None else at
    made = EngineView(
        at=at,
        cost_seconds=0.0,
        step=engine.scheduler.steps,
        rows=engine.scheduler.rows.count,
        stages=stages_of(engine),
        requests=requests,
        lookups=_lookups(engine),
        leases=_leases(engine, at - (engine.clock() if now is None else now)),
        tenants=_tenants(engine, requests),
    )
    return replace(made, cost_seconds=time.thread_time() - begun)


def _leases(engine: Engine, ahead: float) -> tuple[LeaseView, ...]:
    """Those that are held, the first to end first. `ahead`: of the engine's clock, the document's."""
    held = sorted(engine.leases(), key=lambda one: one.until)
    return tuple(
        LeaseView(one.terms.name, one.terms.owner, one.tokens, one.size_bytes, one.where.value, one.until + ahead)
        for one in held
    )


def _lookups(engine: Engine) -> LookupsView:
    admitted = _latest_admissions(engine)
    events, sums = engine.counters.events, engine.counters.sums
    results = {label or "hit": count for (event, label), count in events.items() if event is RequestAdmitted}
    columns = {
        cause: np.array([getattr(one, f"missed_{cause}") for one in admitted], dtype=np.int64) for cause in CAUSES
    }
    return LookupsView(
        results=results,
        prompt_tokens=sums[RequestAccepted, "prompt"],
        found_tokens=sums[RequestAdmitted, "hit_tokens"],
        missed={cause: sums[RequestAdmitted, f"missed_{cause}"] for cause in CAUSES},
        names=tuple(one.request for one in admitted),
        step=np.array([one.step for one in admitted], dtype=np.int64),
        tokens=np.array([one.tokens for one in admitted], dtype=np.int64),
        found=np.array([one.hit_tokens for one in admitted], dtype=np.int64),
        result=tuple(one.label or "hit" for one in admitted),
        missed_tokens={cause: column for cause, column in columns.items() if column.any()},
    )


def _latest_admissions(engine: Engine) -> list[RequestAdmitted]:
    """First admissions of the requests that the history has latest events of, the newest first."""
    found: list[RequestAdmitted] = []
    for name in reversed(engine.history.names):
        if len(found) == MOST_LOOKUPS:
            break
        events = (event for event in engine.history.of(name) if isinstance(event, RequestAdmitted))
        first = next((event for event in events if not event.preemptions), None)
        if first is not None and name != NAME:
            found.append(first)
    return sorted(found, key=lambda one: -one.step)


def _tenants(engine: Engine, requests: RequestsView) -> tuple[TenantView, ...]:
    """Tenants that are active now: none on a server without keys, whose requests have no tenant."""
    scheduler = engine.scheduler
    shares = scheduler.shares
    rows = scheduler.rows.requests.values()
    waiting = [one.request.tenant for one in scheduler.queue]
    running = [request.tenant for request in rows]
    active = sorted({*running, *waiting} - {"", NAME})
    share = shares.rows(scheduler.rows.count) if active else {}
    sizes = dict.fromkeys(active, 0)
    for tenant, size in zip(requests.tenants, requests.size_bytes.tolist(), strict=True):
        if tenant in sizes:
            sizes[tenant] += size
    return tuple(
        TenantView(
            tenant=tenant,
            weight=shares.weight(tenant),
            served_tokens=shares.served(tenant),
            running=running.count(tenant),
            waiting=waiting.count(tenant),
            share_rows=share.get(tenant, 0.0),
            size_bytes=sizes[tenant],
        )
        for tenant in active
    )
