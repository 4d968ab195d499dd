"""The inspector's side in the engine's process: a view of the whole, of one request or of one sheet, when it is asked.

HTTP ── AskView(WholeView | OneRequest | OneSheet) ──▶ engine
HTTP ◀── Reply(EngineView | RequestView | SheetView | None) ── engine

While nobody looks, no question comes and the engine does nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.engine.engine import Engine
from quire.inspect.detail import request_view, sheet_view
from quire.inspect.look import look
from quire.inspect.views import EngineView, RequestView, SheetView


@dataclass(frozen=True, slots=True)
class WholeView:
    """Everything that grows with the pool and the queue, as columns."""


@dataclass(frozen=True, slots=True)
class OneRequest:
    name: str


@dataclass(frozen=True, slots=True)
class OneSheet:
    stage: int
    sheet: int


ViewQuestion = WholeView | OneRequest | OneSheet
ViewReply = EngineView | RequestView | SheetView | None


def answer_view(engine: Engine, question: ViewQuestion) -> ViewReply:
    match question:
        case OneRequest(name):
            return request_view(engine, name)
        case OneSheet(stage, sheet):
            return sheet_view(engine, stage, sheet)
        case WholeView():
            return look(engine)
