"""Routes for operators and tools: models, the plan, explanations, the cache, health, metrics."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire import __version__
from quire.core.events import RequestEvent
from quire.core.reasons import Reason
from quire.explain.events import reason_of
from quire.explain.explanation import KindShort, explained_without_others, without_others
from quire.explain.sentences import sentence, why
from quire.serve.away import EngineAway, EngineSilent
from quire.serve.calls import unavailable
from quire.serve.client import EngineClient
from quire.serve.errors import ApiError, json_response
from quire.serve.keys import Tenant
from quire.serve.messages import RequestReport
from quire.serve.service import Service
from quire.serve.silence import silent_reports

router = APIRouter()
ANSWER_SECONDS = 5.0
"""How long a question to the engine may take."""
STARTED = int(time.time())


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


# ── the model and its plan ───────────────────────────────────────────────


@router.get("/v1/models")
async def models(request: Request) -> Response:
    return json_response({"object": "list", "data": [_model(_service(request))]})


@router.get("/v1/models/{model:path}")
async def model(model: str, request: Request) -> Response:
    _service(request).reader.require_model(model)
    return json_response(_model(_service(request)))


def _model(service: Service) -> dict[str, Any]:
    """With the length that the plan admits, under Quire's name and the one that other servers use."""
    length = service.plan.max_length
    head = {"id": service.model, "object": "model", "created": STARTED, "owned_by": "quire"}
    return {**head, "max_length": length, "max_model_len": length}


@router.get("/v1/plan")
async def plan(request: Request) -> Response:
    """The plan that the server runs on: what `quire plan --json` prints."""
    return Response(_service(request).plan_json, media_type="application/json")


@router.get("/model_info", operation_id="model_info")
@router.get("/get_model_info", operation_id="model_info_earlier")
async def model_info(request: Request) -> Response:
    """What SGLang's routers ask of a server; the path of the model is its name."""
    service = _service(request)
    return json_response({"model_path": service.model, "tokenizer_path": service.model, "is_generation": True})


@router.get("/server_info", operation_id="server_info")
@router.get("/get_server_info", operation_id="server_info_earlier")
async def server_info(request: Request) -> Response:
    """SGLang's too: the model's name and the limits of the plan."""
    service, plan = _service(request), _service(request).plan
    names = {"model_path": service.model, "served_model_name": service.model, "version": __version__}
    ranks = {"tp_size": plan.tensor_parallel, "pp_size": plan.pipeline_parallel, "dp_size": 1}
    limits = {"context_length": plan.max_length, "max_running_requests": plan.max_requests}
    return json_response({**names, **ranks, **limits, "max_prefill_tokens": plan.batch_tokens})


# ── why, and the cache ───────────────────────────────────────────────────


@router.get("/v1/requests/{call}/explain")
async def explain(call: str, request: Request) -> Response:
    """Why a call waits, who holds what it lacks, when it can run at the latest, and what happened to it so far."""
    service, tenant = _service(request), request.state.tenant
    names = await _names(call, request)
    try:
        reports = await _reports(service.client, names)
    except EngineSilent:
        known = await silent_reports(service.client, names)
        choices = [_silent(name, report) for name, report in zip(names, known, strict=True)]
        return json_response({"id": call, "choices": choices})
    except EngineAway as error:
        raise unavailable(error) from None
    own = await service.calls.names_of_tenant(tenant)
    return json_response({"id": call, "choices": [_report(one, tenant, own) for one in reports]})


async def _reports(client: EngineClient, names: tuple[str, ...]) -> tuple[RequestReport, ...]:
    """An engine that makes no progress would not answer: it is not asked."""
    if client.is_ready and not client.progress.is_progressing():
        raise EngineSilent("the engine makes no progress: look at /health/progress")
    reports: tuple[RequestReport, ...] = await client.explain(names, ANSWER_SECONDS)
    return reports


def _silent(name: str, report: dict[str, Any]) -> dict[str, Any]:
    bounds = {"kinds": (), "at_most_steps": None, "at_most_load_seconds": None, "after": (), "events": ()}
    choice = {"choice": _choice(name), "requests": (), "because": None}
    return {**choice, **report, **bounds}


@router.post("/v1/requests/{call}/abort")
async def abort(call: str, request: Request) -> Response:
    """Ends the requests of a call that have not ended; its own client gets the error `aborted`."""
    names = await _names(call, request)
    aborted = await _service(request).client.abort_anywhere(names)
    choices = [
        {"choice": _choice(name), "status": "aborted", "output_tokens": aborted[name]}
        if name in aborted
        else {"choice": _choice(name), "status": "ended"}
        for name in names
    ]
    return json_response({"id": call, "aborted": len(aborted), "choices": choices})


async def _names(call: str, request: Request) -> tuple[str, ...]:
    """The engine's names of a call's requests; raises if the key has no such call."""
    names = await _service(request).calls.names_of(call, request.state.tenant)
    if not names:
        raise ApiError(404, f"no call {call[:64]!r} of this key is known: it may be long over", "request_not_found")
    return names


def _choice(name: str) -> int:
    return int(name.rpartition("-")[2])


def _report(report: RequestReport, tenant: Tenant, own: set[str]) -> dict[str, Any]:
    """For a key that is not an admin's, leaves out other tenants' requests, and that one has the same prefix."""

    def hidden(reason: Reason | None) -> Reason | None:
        return reason if reason is None or tenant.is_admin else without_others(reason, own)

    found = report.explanation
    if found is not None and not tenant.is_admin:
        found = explained_without_others(found, own)
    events = [_event(event, hidden(reason_of(event))) for event in report.events]
    choice = {"choice": _choice(report.name)}
    if found is None:
        return choice | {"status": "ended", **_reason(None), **_NOT_WAITING, "events": events}
    return {
        **choice,
        "status": found.status,
        **_reason(found.reason),
        "reason": why(found),
        "kinds": [_kind(one) for one in found.kinds],
        "at_most_steps": found.steps,
        "at_most_load_seconds": found.load_seconds,
        "after": found.after,
        "events": events,
    }


_NOT_WAITING = {"kinds": (), "at_most_steps": 0, "at_most_load_seconds": 0.0, "after": ()}


def _reason(reason: Reason | None) -> dict[str, Any]:
    """A code for programs, the requests and numbers that belong to it, and a sentence for people."""
    if reason is None:
        return {"code": None, "requests": (), "numbers": {}, "because": None, "reason": ""}
    because = reason.because and _reason(reason.because)
    numbers = {"requests": reason.requests, "numbers": reason.numbers, "because": because}
    return {"code": reason.code, **numbers, "reason": sentence(reason)}


def _event(event: RequestEvent, reason: Reason | None) -> dict[str, Any]:
    code = None if reason is None else reason.code
    label = event.label if reason is None else ""
    head = {"what": event.name, "step": event.step, "request": event.request}
    return {**head, "code": code or label or None, "reason": sentence(reason) or label, "numbers": event.numbers}


def _kind(one: KindShort) -> dict[str, Any]:
    holders = [*one.requests, *one.others]
    pages = {"needs_pages": one.needs_pages, "free_pages": one.free_pages, "awaited_pages": one.awaited_pages}
    pages["evictable_pages"] = one.evictable_pages
    return {"stage": one.stage, "kind": one.kind, **pages, "holders": holders}


@router.get("/v1/cache")
async def cache(request: Request) -> Response:
    """Pages of each kind that the cache alone holds."""
    status = _service(request).client.tick.status
    kinds = status.kinds if status else ()
    cached = [{"stage": kind.stage, "kind": kind.kind, "cached_pages": kind.cached_pages} for kind in kinds]
    return json_response({"kinds": cached, "unit_tokens": _service(request).plan.reuse_unit_tokens})


@router.delete("/v1/cache")
async def drop_cache(
    request: Request,
    scope: Annotated[str | None, Query(max_length=256, description="An admin's alone: whose.")] = None,
    everything: Annotated[bool, Query(description="An admin's alone: all scopes.")] = False,
) -> Response:
    """Forgets what was computed for the key's own scope, in the pool and in tiers; `kept_by`: those that cannot now."""
    service, tenant = _service(request), request.state.tenant
    if (everything or scope not in (None, tenant.scope)) and not tenant.is_admin:
        raise ApiError(403, "this key may drop the cache of its own scope alone", "not_admin", "scope")
    chosen = None if everything else tenant.scope if scope is None else scope
    service.turns_ended.forget(chosen)
    try:
        units, keeping = await service.client.drop_cache(chosen, ANSWER_SECONDS)
    except EngineAway as error:
        raise unavailable(error) from None
    unit_tokens = service.plan.reuse_unit_tokens
    return json_response({"dropped_units": units, "unit_tokens": unit_tokens, "kept_by": keeping})


# ── health ───────────────────────────────────────────────────────────────


@router.get("/health/live")
async def live() -> Response:
    """The process answers."""
    return json_response({"live": True})


@router.get("/version")
async def version() -> Response:
    return json_response({"version": __version__})


@router.get("/ping", responses={503: {"description": "Not now"}}, operation_id="ping")
@router.post("/ping", responses={503: {"description": "Not now"}}, operation_id="ping_by_post")
@router.get("/health", responses={503: {"description": "Not now"}}, operation_id="health")
@router.get("/health/ready", responses={503: {"description": "Not now"}}, operation_id="ready")
async def ready(request: Request) -> Response:
    """Requests are taken: the engine has booted and the server does not drain."""
    service = _service(request)
    is_ready = service.client.is_ready and not service.is_draining
    why = "draining" if service.is_draining else "" if is_ready else "the engine starts"
    return json_response({"ready": is_ready, "reason": why}, 200 if is_ready else 503)


@router.get("/health/progress", responses={503: {"description": "Steps have stopped"}})
async def progress(request: Request) -> Response:
    """Steps settle, or there is nothing to do. However many requests wait."""
    watch = await _service(request).client.latest_progress()
    is_progressing, since = watch.is_progressing(), watch.seconds_since
    body = {"progress": is_progressing, "step_seconds": watch.step_seconds}
    return json_response({**body, "seconds_since": since and round(since, 3)}, 200 if is_progressing else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(
        await _service(request).metrics.of_all_processes(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
