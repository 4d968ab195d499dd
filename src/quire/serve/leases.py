"""/v1/leases: prefixes that are in the cache already are leased, listed and released."""

from __future__ import annotations

import math
import secrets
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field
from starlette.responses import Response

from quire.explain.leases import LeaseReport
from quire.prefix.leases import LeaseTerms
from quire.serve.away import EngineAway
from quire.serve.body_route import BodyRoute
from quire.serve.calls import unavailable
from quire.serve.engine_leases import EndLease, GrantLease, LeaseQuestion, LeaseReply, ListLeases
from quire.serve.errors import ApiError, json_response
from quire.serve.keys import Tenant
from quire.serve.prefix_body import PrefixBody
from quire.serve.retention import (
    broken_document,
    code_of,
    full_name,
    lease_document,
    possible,
    require_seconds,
    shown_name,
)
from quire.serve.schemas import LeaseSeconds, SessionName
from quire.serve.service import Service

router = APIRouter(route_class=BodyRoute)
STATUSES = {"absent": 404, "disabled": 400}
"""By refusal; others are 429: there may be room later."""
Name = Annotated[str, Path(max_length=128)]


class LeaseBody(PrefixBody):
    """A prefix to lease: the longest one of these tokens that is in the cache."""

    seconds: LeaseSeconds
    name: SessionName | None = Field(None, description="A lease of this name moves here; default: a new one.")


@router.post("/v1/leases")
async def grant(body: LeaseBody, request: Request) -> Response:
    """Keeps a prefix usable for some seconds, or says what is possible."""
    service, tenant = _service(request), request.state.tenant
    body.require_one()
    require_seconds(body.seconds, service.settings.lease_seconds, "seconds")
    size = len(await request.body())
    tokens = await service.read(lambda: body.tokens(service.reader), tenant, size)
    name = full_name(tenant, body.name or f"lease-{secrets.token_hex(8)}")
    terms = LeaseTerms(name, tenant.name, body.seconds, quota_bytes=tenant.lease_bytes)
    reply = await _ask(service, GrantLease(terms, tenant.scope, tokens))
    if reply.problem:
        message = f"a request in progress has the lease {shown_name(name)}: wait for its end, or give another name"
        raise ApiError(400, message, "lease_in_use", "name")
    (report,) = reply.leases
    if not report.is_granted:
        raise _refused(report, body.field)
    return json_response(lease_document(report, reply.broken))


@router.get("/v1/leases")
async def held(request: Request) -> Response:
    """Leases of the key, the first to end first; an admin's key sees all. `broken`: ended before their time."""
    service, tenant = _service(request), request.state.tenant
    reply = await _ask(service, ListLeases(tenant.name, tenant.is_admin))
    data = [_listed(report, tenant) for report in reply.leases]
    lost = [broken_document(one) for one in reply.broken]
    return json_response({"object": "list", "data": data, "broken": lost})


@router.get("/v1/leases/{name}")
async def one(name: Name, request: Request) -> Response:
    tenant = request.state.tenant
    return json_response(_listed(await _find(name, request), tenant))


@router.delete("/v1/leases/{name}")
async def release(name: Name, request: Request) -> Response:
    """Ends a lease. Its prefix stays in the cache as others do."""
    found = await _find(name, request)
    await _ask(_service(request), EndLease(request.state.tenant.name, found.name))
    return json_response({"object": "lease", "name": name, "released": True})


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _ask(service: Service, question: LeaseQuestion) -> LeaseReply:
    try:
        return await service.leases.ask(question)
    except EngineAway as error:
        raise unavailable(error) from None


async def _find(name: str, request: Request) -> LeaseReport:
    """A key finds its own leases, an admin's also those of others."""
    tenant: Tenant = request.state.tenant
    reply = await _ask(_service(request), ListLeases(tenant.name, tenant.is_admin))
    found = [report for report in reply.leases if shown_name(report.name) == name]
    if not found:
        message = f"this key has no lease {name[:64]!r}: it may have ended; GET /v1/leases lists those that are held"
        raise ApiError(404, message, "lease_not_found", "name")
    return min(found, key=lambda report: report.owner != tenant.name)


def _listed(report: LeaseReport, tenant: Tenant) -> dict[str, Any]:
    return lease_document(report) | ({"tenant": report.owner} if tenant.is_admin else {})


def _refused(report: LeaseReport, field: str) -> ApiError:
    status = STATUSES.get(report.refusal, 429)
    retry = None
    if status == 429:
        retry = 60 if report.earliest is None else max(1, math.ceil(report.earliest - time.time()))
    return ApiError(status, report.message, code_of(report), field, retry, numbers=possible(report))
