"""What a body asks to be leased, how leases are named, and how they are written as JSON.

A lease belongs to a tenant: its name in the engine begins with the tenant's, and clients see the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from quire.core.request import Retain
from quire.explain.leases import LeaseReport
from quire.serve.engine_leases import BrokenLease
from quire.serve.errors import ApiError
from quire.serve.fields import note_ignored
from quire.serve.keys import Tenant
from quire.serve.schemas import CacheControl, ChatBody, Sampled

TTL_SECONDS = {None: 300.0, "5m": 300.0, "1h": 3600.0}
SEPARATOR = "\n"
"""Between the tenant's name and the lease's: neither has one."""
Json = dict[str, Any]


def retain_of(body: Sampled, answers: int, longest_seconds: float) -> Retain | None:
    """From `retain`, or else from marks of Anthropic's form: then for at most as long as the server grants."""
    if body.retain is not None:
        if answers > 1:
            message = f"retain is for one answer, and this call has {answers}: leave one of them out"
            raise ApiError(400, message, "invalid_value", "retain")
        require_seconds(body.retain.seconds, longest_seconds, "retain.seconds")
        return Retain(body.retain.seconds, body.retain.session or "")
    longest = longest_mark(_marks(body)) if isinstance(body, ChatBody) else None
    if longest is not None and answers > 1:
        note_ignored("messages.cache_control")
        return None
    return None if longest is None else Retain(min(TTL_SECONDS[longest.ttl], longest_seconds))


def require_seconds(asked: float, longest: float, field: str) -> None:
    if asked > longest:
        numbers = {"asked_seconds": math.ceil(asked), "most_seconds": int(longest)}
        message = f"{field} is {asked:g}, and leases of this server last at most {longest:g} s: ask for less"
        raise ApiError(400, message, "lease_too_long", field, numbers=numbers)


def longest_mark(marks: Iterable[CacheControl | None]) -> CacheControl | None:
    found = [mark for mark in marks if mark is not None]
    return max(found, key=lambda mark: TTL_SECONDS[mark.ttl], default=None)


def _marks(body: ChatBody) -> Iterator[CacheControl | None]:
    for said in body.messages:
        yield said.cache_control
        if isinstance(said.content, list):
            yield from (part.cache_control for part in said.content)
    yield from (tool.cache_control for tool in body.tools or ())


# ── names ────────────────────────────────────────────────────────────────


def full_name(tenant: Tenant, name: str) -> str:
    return f"{tenant.name}{SEPARATOR}{name}"


def shown_name(name: str) -> str:
    return name.rpartition(SEPARATOR)[2]


def retain_for(retain: Retain | None, tenant: Tenant) -> Retain | None:
    """With the tenant's quota; a session is the tenant's own."""
    if retain is None:
        return None
    session = full_name(tenant, retain.session) if retain.session else ""
    return replace(retain, session=session, quota_bytes=tenant.lease_bytes)


# ── JSON ─────────────────────────────────────────────────────────────────


def lease_document(report: LeaseReport, broken: Iterable[BrokenLease] = ()) -> Json:
    """`broken`: leases of the same tenant that ended before their time since it was last answered."""
    head: Json = {"object": "lease", "name": shown_name(report.name), "granted": report.is_granted}
    if report.is_granted:
        held = {"tokens": report.tokens, "until": _second(report.until), "size_bytes": report.size_bytes}
        lease = {**head, **held, "where": report.where}
    else:
        lease = {**head, "code": code_of(report), "message": report.message, **possible(report)}
        lease |= {"elsewhere": report.elsewhere} if report.elsewhere else {}
        if report.held_tokens:
            lease |= {"held_tokens": report.held_tokens, "until": _second(report.until)}
    lost = [broken_document(one) for one in broken]
    return lease | ({"broken": lost} if lost else {})


def broken_document(one: BrokenLease) -> Json:
    return {"name": shown_name(one.name), "ending": one.ending, "tokens": one.tokens, "at": int(one.at)}


def code_of(report: LeaseReport) -> str:
    return f"lease_{report.refusal}"


def possible(report: LeaseReport) -> dict[str, int]:
    """The numbers of a refusal: what was asked for, what there is, what would be granted. Zeros say nothing."""
    numbers = {
        "tokens": report.tokens,
        "size_bytes": report.size_bytes,
        "limit_bytes": report.limit_bytes,
        "fewer_tokens": report.fewer_tokens,
        "earliest": _second(report.earliest) or 0,
    }
    return {name: number for name, number in numbers.items() if number}


def _second(at: float | None) -> int | None:
    return None if at is None else math.ceil(at)
