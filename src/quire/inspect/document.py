"""The inspector's document: JSON of a view, of the plan it runs on, and of what the server knows about the engine.

    EngineView ─┐
    Plan       ─┼─▶ document ─▶ {"status": …, "memory": …, "pool": …, "requests": …, …}     one key for each view
    ServerView ─┘

The same function makes the document of a live engine, of a recording at one step and of a simulation. A table is an
object of columns of equal length. docs/inspector.md has every field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from quire.core.version import __version__
from quire.explain.sentences import sentence
from quire.inspect.reader import Others, Reader, for_reader
from quire.inspect.views import STATES, EngineView, KindView, LookupsView, RequestsView, Squares, StageView
from quire.plan.file import fingerprint
from quire.plan.plan import Plan, RankPlan
from quire.tiers.status import TierStatus

Json = dict[str, Any]
SCHEMA = "quire.inspect/1"
VIEWS = ("status", "memory", "pool", "requests", "reuse", "sessions", "tiers", "ranks")
PAGES = ("used_pages", "cached_pages", "pinned_pages", "backend_pages", "free_pages", "leased_pages", "transfer_pages")
"""Counts of a kind's pages, by state."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """What is known about an engine from outside it, also while it does not answer."""

    source: str
    """server, recording or simulation"""
    state: str
    """ready, starting, draining, silent, frozen or dead; a recording is `recorded`."""
    reason: str = ""
    """One sentence about a state other than ready: the engine's last words, or since when it is silent."""
    steps: int = 0
    """As of its last report, which may be later than the rest of the document."""
    seconds_since_step: float | None = None
    step_seconds: float | None = None
    """How long steps took lately."""
    restarts: int = 0
    audit: str = "due"
    """The last audit of the memory: ok, failed, or due since steps came after it."""
    audit_error: str = ""
    audit_step: int | None = None
    """When it was made; None: never."""
    running: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    """By the code of the reason."""
    resident_bytes: int = 0
    """Measured, of the engine's process; 0: not measured."""
    tiers: Sequence[TierStatus] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What documents are about: a plan, and the parts of every document that follow from it alone."""

    plan: Plan
    fingerprint: str
    ranks: tuple[Json, ...]

    @staticmethod
    def of(plan: Plan) -> Subject:
        return Subject(plan, fingerprint(plan), tuple(_rank(plan, rank) for rank in plan.ranks))


def document(subject: Subject, server: ServerView, view: EngineView | None, reader: Reader | None = None) -> Json:
    """`view` None: the engine has not shown itself yet. `reader` None: one who may see everything."""
    plan, others = subject.plan, Others()
    waiting_by = server.waiting
    if view is not None and reader is not None:
        view, others = for_reader(view, reader)
    if reader is not None:
        server = replace(server, audit_error="")  # it may name a request
        waiting_by = {} if view is None else _waiting_by(view.requests)
    return {
        **_head(subject, server, view),
        "reader": {"tenant": None if reader is None else reader.tenant, "is_admin": reader is None},
        "status": _status(server, waiting_by),
        "memory": _memory(plan, server, view),
        "pool": None if view is None else {"stages": [_stage(one) for one in view.stages]},
        "requests": None if view is None else _requests(view.requests, others, view.rows),
        "reuse": None if view is None else _reuse(view.lookups, plan),
        "sessions": None if view is None else _sessions(view),
        "tiers": _tiers(server.tiers, shows_lookups=reader is None),
        "ranks": list(subject.ranks),
        "recording": None,
    }


def _head(subject: Subject, server: ServerView, view: EngineView | None) -> Json:
    """What every view's JSON begins with."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "source": server.source,
        "model": subject.plan.model,
        "plan": subject.fingerprint,
        "at": None if view is None else round(view.at, 3),
        "step": None if view is None else view.step,
    }


def view_of(whole: Json, name: str) -> Json:
    """One view of a document, with the document's head."""
    return {key: whole[key] for key in ("schema", "version", "source", "model", "plan", "at", "step", name)}


def table(columns: Mapping[str, Sequence[Any]]) -> Json:
    return {name: list(column) for name, column in columns.items()}


# ── views ────────────────────────────────────────────────────────────────


def _waiting_by(view: RequestsView) -> Mapping[str, int]:
    """Requests that wait, by the code of their reason."""
    waits = view.reason[view.reason < len(view.reasons)]
    return Counter(view.reasons[place].code.value for place in waits.tolist())


def _status(server: ServerView, waiting_by: Mapping[str, int]) -> Json:
    since, step = server.seconds_since_step, server.step_seconds
    return {
        "state": server.state,
        "reason": server.reason,
        "steps": server.steps,
        "seconds_since_step": None if since is None else round(since, 1),
        "step_milliseconds": None if step is None else round(1e3 * step, 2),
        "restarts": server.restarts,
        "audit": server.audit,
        "audit_error": server.audit_error,
        "audit_step": server.audit_step,
        "running": server.running,
        "waiting": sum(server.waiting.values()),
        "waiting_by": {code: count for code, count in waiting_by.items() if count},
    }


def _memory(plan: Plan, server: ServerView, view: EngineView | None) -> Json:
    """Of the device that limits the plan."""
    rank = plan.ranks[plan.bottleneck_rank]
    lines = rank.ledger
    return {
        "rank": rank.rank,
        "limit_bytes": plan.limit_bytes,
        "pool_bytes": plan.bottleneck.pool_bytes,
        "planned": table(
            {
                "use": [line.name for line in lines],
                "bytes": [line.bytes for line in lines],
                "basis": [line.basis for line in lines],
            }
        ),
        "resident_bytes": server.resident_bytes or None,
        "pool": None if view is None else _bytes_of(plan, view),
    }


def _bytes_of(plan: Plan, view: EngineView) -> Json:
    """Of the pool: what pages in each state take; `free` is the rest, free pages and the ends of sheets included."""
    stage = next(one for one in view.stages if one.stage == _place(plan))
    taken = {
        state: sum(getattr(kind, f"{state}_pages") * kind.page_bytes for kind in stage.kinds)
        for state in ("used", "cached", "pinned", "backend", "leased", "transfer")
    }
    in_use = sum(taken[state] for state in ("used", "cached", "pinned", "backend"))
    return {**taken, "free": stage.sheets * stage.sheet_bytes - in_use}


def _place(plan: Plan) -> int:
    """Of the bottleneck, among the stages that keep anything."""
    return sum(bool(stage.kinds) for stage in plan.stages[: plan.bottleneck_stage])


def _stage(stage: StageView) -> Json:
    return {
        "stage": stage.stage,
        "sheets": stage.sheets,
        "sheet_bytes": stage.sheet_bytes,
        "free_sheets": stage.free_sheets,
        "lease_sheets": stage.lease_sheets,
        "kinds": [_kind(kind) for kind in stage.kinds],
        "squares": _squares(stage.squares),
    }


def _kind(kind: KindView) -> Json:
    return asdict(kind)


def _squares(squares: Squares) -> Json:
    names = ("kind", "used", "cached", "leased", "transfer", "pinned", "backend")
    return {name: getattr(squares, name).tolist() for name in names}


def _requests(view: RequestsView, others: Others, rows: int) -> Json:
    sentences = [sentence(reason) for reason in view.reasons]
    columns = ("prompt", "known", "computed", "found", "loaded", "likely", "limit", "preemptions")
    return {
        "rows": rows,
        "running": view.running,
        "waiting": view.waiting,
        "others": asdict(others),
        "states": list(STATES),
        "reasons": table({"code": [reason.code.value for reason in view.reasons], "text": sentences}),
        "table": {
            "name": list(view.names),
            "client_id": list(view.client_ids),
            "tenant": list(view.tenants),
            "state": view.state.tolist(),
            **{name: getattr(view, name).tolist() for name in columns},
            "bytes": view.size_bytes.tolist(),
            "at_most_steps": view.steps.tolist(),
            "reason": view.reason.tolist(),
        },
    }


def _reuse(view: LookupsView, plan: Plan) -> Json:
    return {
        "unit_tokens": plan.reuse_unit_tokens,
        "disabled": plan.no_reuse_because or None,
        "bytes_per_token": plan.bytes_per_token,
        "results": dict(view.results),
        "prompt_tokens": view.prompt_tokens,
        "found_tokens": view.found_tokens,
        "missed": dict(view.missed),
        "latest": {
            "name": list(view.names),
            "step": view.step.tolist(),
            "tokens": view.tokens.tolist(),
            "found": view.found.tolist(),
            "result": list(view.result),
            **{f"missed_{cause}": column.tolist() for cause, column in view.missed_tokens.items()},
        },
    }


def _sessions(view: EngineView) -> Json:
    leases, tenants = view.leases, view.tenants
    return {
        "leases": table(
            {
                "name": [one.name for one in leases],
                "tenant": [one.owner for one in leases],
                "tokens": [one.tokens for one in leases],
                "bytes": [one.size_bytes for one in leases],
                "where": [one.where for one in leases],
                "until": [round(one.until, 1) for one in leases],
            }
        ),
        "tenants": table(
            {
                "name": [one.tenant for one in tenants],
                "weight": [one.weight for one in tenants],
                "served_tokens": [round(one.served_tokens) for one in tenants],
                "running": [one.running for one in tenants],
                "waiting": [one.waiting for one in tenants],
                "share_rows": [round(one.share_rows, 2) for one in tenants],
                "bytes": [one.size_bytes for one in tenants],
            }
        ),
    }


def _tiers(tiers: Sequence[TierStatus], *, shows_lookups: bool) -> Json:
    """`shows_lookups`: whether the reader may know how often all requests together found something there."""
    columns: dict[str, list[Any]] = {
        "name": [one.name for one in tiers],
        "can_read": [one.can_read for one in tiers],
        "can_write": [one.can_write for one in tiers],
        "hits": [one.hits if shows_lookups else None for one in tiers],
        "misses": [one.misses if shows_lookups else None for one in tiers],
    }
    for way in ("read", "write"):
        columns |= {
            f"{way}_bytes": [one.bytes[way] for one in tiers],
            f"{way}_transfers": [one.transfers[way] for one in tiers],
            f"{way}_seconds": [round(one.seconds[way], 3) for one in tiers],
            f"{way}_in_flight": [one.in_flight[way] for one in tiers],
        }
    return {**columns, "failures": [sum(one.failures.values()) for one in tiers]}


def _rank(plan: Plan, rank: RankPlan) -> Json:
    stage = plan.stages[rank.stage]
    return {
        "rank": rank.rank,
        "stage": rank.stage,
        "tensor_rank": rank.tensor_rank,
        "first_layer": stage.first_layer,
        "layers": stage.layers,
        "sheets": stage.sheets,
        "pool_bytes": rank.pool_bytes,
        "idle_bytes": rank.idle_bytes,
        "ledger": table(
            {
                "use": [line.name for line in rank.ledger],
                "bytes": [line.bytes for line in rank.ledger],
                "basis": [line.basis for line in rank.ledger],
            }
        ),
    }
