"""The items of one answer as they grow, and the events that a stream reports them with.

output_item.added ─▶ content_part.added ─▶ …text.delta, … ─▶ …text.done ─▶ content_part.done ─▶ output_item.done
output_item.added ─▶ function_call_arguments.delta, … ─▶ function_call_arguments.done ─▶ output_item.done
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from quire.text.answer import Delta, in_order
from quire.text.dialects.calls import ToolCall

Json = dict[str, Any]
ARGUMENTS = "response.function_call_arguments"


@dataclass(frozen=True, slots=True)
class _Sort:
    """A sort of item with text."""

    prefix: str
    text: str
    """In the names of its events."""
    item: Json
    part: Json


MESSAGE = _Sort(
    "msg",
    "output_text",
    {"type": "message", "role": "assistant"},
    {"type": "output_text", "text": "", "annotations": []},
)
REASONING = _Sort("rs", "reasoning_text", {"type": "reasoning", "summary": []}, {"type": "reasoning_text", "text": ""})


@dataclass(slots=True)
class _OpenItem:
    """An item that more text may be added to."""

    sort: _Sort
    place: Json
    """Its id, and its number among the items."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    def document(self, status: str) -> Json:
        content = [] if status == "in_progress" else [self._part("".join(self.texts), self.logprobs)]
        return {"id": self.place["item_id"], **self.sort.item, "status": status, "content": content}

    def begin(self) -> list[Json]:
        part = {"type": "response.content_part.added", **self.place, "content_index": 0, "part": self._part("", [])}
        return [_item_event("added", self.place, self.document("in_progress")), part]

    def grow(self, text: str, logprobs: list[Json]) -> Json:
        self.texts.append(text)
        self.logprobs += logprobs
        return self._event("delta", {"delta": text}, logprobs)

    def finish(self, status: str) -> list[Json]:
        document = self.document(status)
        (part,) = document["content"]
        done = {"type": "response.content_part.done", **self.place, "content_index": 0, "part": part}
        text = self._event("done", {"text": part["text"]}, self.logprobs)
        return [text, done, _item_event("done", self.place, document)]

    def _part(self, text: str, logprobs: list[Json]) -> Json:
        return {**self.sort.part, "text": text, **self._logprobs(logprobs)}

    def _event(self, what: str, more: Json, logprobs: list[Json]) -> Json:
        head = {"type": f"response.{self.sort.text}.{what}", **self.place, "content_index": 0}
        return {**head, **more, **self._logprobs(logprobs)}

    def _logprobs(self, logprobs: list[Json]) -> Json:
        return {"logprobs": list(logprobs)} if self.sort is MESSAGE else {}


@dataclass(slots=True)
class _OpenCall:
    """A call that more arguments may be added to."""

    call: ToolCall
    """Its first piece."""
    place: Json
    arguments: str = ""

    def document(self, status: str) -> Json:
        head = {"id": self.place["item_id"], "type": "function_call", "call_id": self.call.id, "name": self.call.name}
        return {**head, "status": status, "arguments": self.arguments}

    def begin(self) -> list[Json]:
        return [_item_event("added", self.place, self.document("in_progress"))]

    def grow(self, arguments: str) -> Json:
        self.arguments += arguments
        return {"type": f"{ARGUMENTS}.delta", **self.place, "delta": arguments}

    def finish(self, status: str) -> list[Json]:
        done = {"type": f"{ARGUMENTS}.done", **self.place, "name": self.call.name, "arguments": self.arguments}
        return [done, _item_event("done", self.place, self.document(status))]


class Output:
    def __init__(self, call: str) -> None:
        """`call`: its id, which the ids of its items contain."""
        self.items: list[Json] = []
        """Those that are complete."""
        self._call = call
        self._open: _OpenItem | _OpenCall | None = None

    def feed(self, delta: Delta, logprobs: list[Json]) -> list[Json]:
        """Adds what is new, and returns its events. `logprobs`: of the tokens after the reasoning. Those without text
        of their own, such as the end of text, are added to the message that is open."""
        events = self._grow(REASONING, delta.reasoning, [])
        if not delta.text:
            events += self._grow(MESSAGE, "", logprobs)
        for part in in_order(delta):
            if isinstance(part, str):
                events += self._grow(MESSAGE, part, logprobs)
                logprobs = []
            else:
                events += self._add_call(part)
        return events

    def close(self, status: str) -> list[Json]:
        """The answer has ended, its last item is complete or incomplete. A call with arguments in JSON is complete. An
        answer without items gets an empty message."""
        events = [] if self.items or self._open else self._begin(MESSAGE)
        if isinstance(self._open, _OpenCall) and _is_json(self._open.arguments):
            status = "completed"
        return events + self._finish(status)

    def _grow(self, sort: _Sort, text: str, logprobs: list[Json]) -> list[Json]:
        if not text:
            if isinstance(self._open, _OpenItem) and self._open.sort is sort:
                self._open.logprobs += logprobs
            return []
        events: list[Json] = []
        if not (isinstance(self._open, _OpenItem) and self._open.sort is sort):
            events = self._finish("completed") + self._begin(sort)
        assert isinstance(self._open, _OpenItem)
        return [*events, self._open.grow(text, logprobs)]

    def _begin(self, sort: _Sort) -> list[Json]:
        self._open = _OpenItem(sort, self._place(sort.prefix))
        return self._open.begin()

    def _add_call(self, call: ToolCall) -> list[Json]:
        """A call, or the next piece of the one that is open."""
        events: list[Json] = []
        if not (call.continues and isinstance(self._open, _OpenCall)):
            events = self._finish("completed")
            self._open = _OpenCall(call, self._place("fc"))
            events += self._open.begin()
        assert isinstance(self._open, _OpenCall)
        return [*events, self._open.grow(call.arguments)] if call.arguments else events

    def _finish(self, status: str) -> list[Json]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        self.items.append(closed.document(status))
        return closed.finish(status)

    def _place(self, prefix: str) -> Json:
        number = len(self.items)
        return {"item_id": f"{prefix}_{self._call}_{number}", "output_index": number}


def _item_event(what: str, place: Json, document: Json) -> Json:
    head = {"type": f"response.output_item.{what}", "output_index": place["output_index"]}
    return {**head, "item": document}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
