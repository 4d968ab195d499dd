"""One request or one sheet in detail, asked for when a reader clicks on it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.events import RequestEvent
from quire.core.reasons import Reason
from quire.engine.engine import Engine
from quire.explain.events import reason_of
from quire.explain.explanation import KindShort, without_others
from quire.explain.request import explain
from quire.explain.sentences import describe, kept, room, sentence, why
from quire.inspect.reader import Reader, request_for_reader, sheet_for_reader
from quire.inspect.views import Held, RequestView, SheetView

Json = dict[str, Any]


def request_view(engine: Engine, name: str) -> RequestView | None:
    """None: no event of such a request is remembered."""
    found, events = explain(engine, name), engine.history.of(name)
    if found is None and not events:
        return None
    return RequestView(name, found, events, _held(engine, name))


def _held(engine: Engine, name: str) -> tuple[Held, ...]:
    row = engine.scheduler.rows.row_of.get(name)
    if row is None:
        return ()
    held = []
    for stage, memory in enumerate(engine.scheduler.memories):
        for table, shelf in zip(memory.tables, memory.pool.shelves, strict=True):
            sheets, pages = np.unique(shelf.sheet[table.held(row)], return_counts=True)
            held.append(Held(stage, table.plan.name, tuple(sheets.tolist()), tuple(pages.tolist())))
    return tuple(held)


def sheet_view(engine: Engine, stage: int, sheet: int) -> SheetView | None:
    """None: there is no such sheet."""
    memories = engine.scheduler.memories
    if not 0 <= stage < len(memories) or not 0 <= sheet < memories[stage].stage.sheets:
        return None
    memory = memories[stage]
    kind = memory.pool.owner.item(sheet)
    if kind == memory.pool.no_owner:
        return SheetView(stage, sheet, "", 0, (), ())
    requests = engine.scheduler.rows.requests.items()
    shelf = memory.pool.shelves[kind]
    own = ((one.name, int((shelf.sheet[memory.tables[kind].held(row)] == sheet).sum())) for row, one in requests)
    held = tuple(sorted((one for one in own if one[1]), key=lambda one: (-one[1], one[0])))
    return SheetView(
        stage, sheet, memory.stage.kinds[kind].name, shelf.pages_per_sheet, held, _others(memory, kind, sheet)
    )


def _others(memory: StageMemory, kind: int, sheet: int) -> tuple[tuple[str, int], ...]:
    """Pages that no request holds."""
    shelf = memory.pool.shelves[kind]
    pages = shelf.in_sheet[sheet]
    left, found = shelf.count(Holder.REQUEST, pages) == 0, []
    for holder, name in ((Holder.CACHE, "cache"), (Holder.PIN, "pins"), (Holder.BACKEND, "backend")):
        held = (shelf.count(holder, pages) > 0) & left
        left &= ~held
        found.append((name, int(held.sum())))
    return tuple(one for one in found if one[1])


def request_document(view: RequestView, reader: Reader | None = None) -> Json:
    """As JSON, for one who may see it. `reader` None: names of other requests are shown too."""
    hide = _nothing_hidden if reader is None else lambda reason: without_others(reason, reader.own)
    if reader is not None:
        view = request_for_reader(view, reader)
    found = view.explanation
    waits = found is not None and found.status == "waiting"
    return {
        "name": view.name,
        "status": "ended" if found is None else found.status,
        "reason": "" if found is None else why(found),
        "text": "" if found is None else describe(found),
        "kept": "" if found is None else kept(found),
        "room": "" if found is None else room(found),
        "at_most_steps": found.steps if found is not None and waits else None,
        "at_most_load_seconds": found.load_seconds if found is not None and waits else None,
        "after": [] if found is None else list(found.after),
        "kinds": [] if found is None else [_kind(one) for one in found.kinds],
        "events": [_event(event, hide) for event in view.events],
        "held": [
            {"stage": one.stage, "kind": one.kind, "sheets": list(one.sheets), "pages": list(one.pages)}
            for one in view.held
        ],
    }


def sheet_document(view: SheetView, reader: Reader | None = None) -> Json:
    if reader is not None:
        view = sheet_for_reader(view, reader)
    holders = [{"name": name, "pages": pages, "is_request": True} for name, pages in view.requests]
    holders += [{"name": name, "pages": pages, "is_request": False} for name, pages in view.others]
    return {
        "stage": view.stage,
        "sheet": view.sheet,
        "kind": view.kind or None,
        "pages": view.pages,
        "holders": holders,
    }


def _nothing_hidden(reason: Reason) -> Reason:
    return reason


def _kind(one: KindShort) -> Json:
    holders = [*one.requests, *one.others]
    return {
        "stage": one.stage,
        "kind": one.kind,
        "needs_pages": one.needs_pages,
        "free_pages": one.free_pages,
        "evictable_pages": one.evictable_pages,
        "awaited_pages": one.awaited_pages,
        "missing_pages": one.short_pages,
        "holders": [list(holder) for holder in holders],
    }


def _event(event: RequestEvent, hide: Callable[[Reason], Reason]) -> Json:
    found = reason_of(event)
    reason = None if found is None else hide(found)
    label = event.label if reason is None else ""
    return {
        "what": event.name,
        "step": event.step,
        "code": label or (None if reason is None else reason.code.value),
        "requests": [] if reason is None else list(reason.requests),
        "reason": sentence(reason) or label,
        "numbers": event.numbers,
    }
