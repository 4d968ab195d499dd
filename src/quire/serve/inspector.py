"""The inspector's document over HTTP: the whole, one view, one request, one sheet, and differences as they happen.

    EngineViews ──Seen──▶ frame ──▶ what this key may see ──▶ JSON, or server-sent differences

It is answered while the engine is silent, frozen or dead: the last view stays, and `status` says what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from quire.inspect.detail import request_document, sheet_document
from quire.inspect.difference import difference
from quire.inspect.document import VIEWS, Json, ServerView, document, view_of
from quire.inspect.reader import Reader
from quire.inspect.views import RequestView, SheetView
from quire.inspect.what_if import MOST_LENGTH, MOST_POOL_BYTES, what_if_document
from quire.planner.whatif import REFERENCE_LENGTHS
from quire.serve.away import EngineAway
from quire.serve.calls import unavailable
from quire.serve.engine_views import OneRequest, OneSheet
from quire.serve.errors import ApiError, dumps, json_response
from quire.serve.keys import Tenant
from quire.serve.messages import EngineTick
from quire.serve.progress import Progress
from quire.serve.service import Service
from quire.serve.streams import ClientWatch, EventStream, Piece
from quire.serve.views import FRAME_SECONDS, Seen

router = APIRouter()
ANSWER_SECONDS = 2.0
SILENT_SECONDS = 1.2
"""An engine that has not answered for this long is in a long step, or frozen."""
View = Annotated[str, Path(json_schema_extra={"enum": list(VIEWS)})]
Length = Annotated[
    int | None, Query(ge=1, le=MOST_LENGTH, description="Of each request; default 8192, or the longest.")
]
PoolBytes = Annotated[int | None, Query(ge=1, le=MOST_POOL_BYTES, description="A further size of the pool to compare.")]
Frames = Annotated[int | None, Query(ge=1, le=1 << 20, description="End after this many events; default: never.")]


@router.get("/v1/inspect")
async def whole(request: Request) -> Response:
    """All that the inspector shows: one document."""
    return _to_page(request, "") or json_response(await frame(_service(request), request.state.tenant))


@router.get("/v1/inspect/stream")
async def stream(request: Request, frames: Frames = None) -> Response:
    """The document, then its differences as server-sent events, at most two a second."""
    return InspectorStream(_service(request), request.state.tenant, frames, ClientWatch(request.receive))


@router.get("/v1/inspect/requests/{name}")
async def one_request(name: Annotated[str, Path(max_length=256)], request: Request) -> Response:
    """One request: why it waits or runs, its latest events, and the sheets that hold its pages."""
    service, tenant = _service(request), request.state.tenant
    reader = await reader_of(service, tenant)
    found = await _asked(service, OneRequest(name)) if reader is None or name in reader.own else None
    if not isinstance(found, RequestView):
        message = f"no request {name[:64]!r} of this key is known: it may be long over"
        raise ApiError(404, message, "request_not_found")
    return _to_page(request, f"requests/{name}") or json_response(request_document(found, reader))


@router.get("/v1/inspect/sheets/{stage}/{sheet}")
async def one_sheet(
    stage: Annotated[int, Path(ge=0, le=1 << 31)], sheet: Annotated[int, Path(ge=0, le=1 << 31)], request: Request
) -> Response:
    """One sheet of the pool: who holds its pages."""
    service, tenant = _service(request), request.state.tenant
    found = await _asked(service, OneSheet(stage, sheet))
    if not isinstance(found, SheetView):
        raise ApiError(404, f"stage {stage} has no sheet {sheet}: /v1/inspect/pool has all of them", "sheet_not_found")
    return json_response(sheet_document(found, await reader_of(service, tenant)))


@router.get("/v1/inspect/what-if")
async def what_if(request: Request, length: Length = None, pool_bytes: PoolBytes = None) -> Response:
    """How many requests of a length another pool, or keys and values of another width, would hold."""
    if shown := _to_page(request, "what-if"):
        return shown
    service = _service(request)
    plan = service.plan
    length = min(length or REFERENCE_LENGTHS[0], plan.max_length)

    def ask() -> Json:
        return what_if_document(plan, length, pool_bytes, service.shape())

    return json_response(await service.planner_questions.answer(ask, request.state.tenant))


@router.get("/v1/inspect/{view}")
async def one_view(view: View, request: Request) -> Response:
    """One view of the document, with its head."""
    if view not in VIEWS:
        raise ApiError(404, f"the inspector has no view {view[:64]!r}: choose {', '.join(VIEWS)}", "not_found")
    found = _to_page(request, view)
    return found or json_response(view_of(await frame(_service(request), request.state.tenant), view))


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _to_page(request: Request, place: str) -> Response | None:
    """A browser that opens a view's address is shown the page there."""
    if "text/html" not in request.headers.get("accept", ""):
        return None
    return RedirectResponse(f"/inspect#{place}", 303)


async def _asked(service: Service, question: OneRequest | OneSheet) -> Any:
    try:
        return await service.views.ask(question, ANSWER_SECONDS)
    except EngineAway as error:
        raise unavailable(error) from None


async def reader_of(service: Service, tenant: Tenant) -> Reader | None:
    """None: an admin, who sees everything."""
    return None if tenant.is_admin else Reader(tenant.name, await service.calls.names_of_tenant(tenant))


async def frame(service: Service, tenant: Tenant, patience_seconds: float = ANSWER_SECONDS) -> Json:
    """The document as it is now, for this key; with the last view if the engine does not answer in time."""
    seen = await service.views.latest(patience_seconds)
    progress = await service.client.latest_progress()
    return document(service.subject, server_view(service, seen, progress), seen.view, await reader_of(service, tenant))


class InspectorStream(EventStream):
    """The document and its differences. It counts as open for as long as it is sent."""

    def __init__(self, service: Service, tenant: Tenant, frames: int | None, watch: ClientWatch) -> None:
        super().__init__(_pieces(service, tenant, frames), lambda _writer: None, watch)
        self._streams, self._tenant = service.inspector_streams, tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._streams.opened(self._tenant):
                await super().__call__(scope, receive, send)
        finally:
            self._watch.end()


async def _pieces(service: Service, tenant: Tenant, frames: int | None) -> AsyncIterator[Piece]:
    """An event for each frame that differs from the one before it."""
    known: Json | None = None
    while True:
        pause = asyncio.ensure_future(asyncio.sleep(FRAME_SECONDS))
        now = await frame(service, tenant, FRAME_SECONDS)
        change = difference(known, now)
        frames = None if frames is None else frames - 1
        if change is not None:
            yield f"data: {dumps(change)}\n\n".encode(), frames != 0
        known = now
        if frames == 0:
            return
        await pause


# ── what is known without the engine ─────────────────────────────────────


def server_view(service: Service, seen: Seen, progress: Progress) -> ServerView:
    client = service.client
    tick: EngineTick = client.tick
    state, reason = _state(service, seen, progress)
    status = tick.status
    since = progress.seconds_since
    return ServerView(
        source="server",
        state=state,
        reason=reason,
        steps=progress.steps,
        seconds_since_step=since,
        step_seconds=seen.step_seconds,
        restarts=client.restarts,
        audit="failed" if tick.books else "ok" if tick.is_audited else "due",
        audit_error=tick.books,
        audit_step=tick.audit_step,
        running=0 if status is None else status.running,
        waiting={} if status is None else dict(status.waiting),
        resident_bytes=tick.resident_bytes,
        tiers=tick.tiers,
    )


def _state(service: Service, seen: Seen, progress: Progress) -> tuple[str, str]:
    """One word, and a sentence for all but `ready`."""
    client, since = service.client, progress.seconds_since or 0.0
    if not client.has_process:
        return "dead", f"{client.last_words or 'there is no engine'}; it is being started again"
    if not client.is_ready:
        why = f" again ({client.last_words})" if client.last_words else ""
        return "starting", f"the engine starts{why}"
    if not progress.is_progressing():
        return "frozen", f"the engine has finished no step for {since:,.0f} s: what is shown is older than that"
    if seen.unanswered_seconds > SILENT_SECONDS:
        return "silent", f"a step has taken {max(since, seen.unanswered_seconds):,.0f} s so far"
    if service.is_draining:
        return "draining", "the server stops: running requests may finish, new ones are refused"
    return "ready", ""
