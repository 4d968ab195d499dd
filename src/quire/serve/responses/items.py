"""The items of a conversation: messages, calls of functions, their outputs, reasoning. The server's own output items
are among them, so that a client can hand them back. What cannot be read is refused by its type and place."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter, WithJsonSchema

from quire.serve.schemas import MOST_MESSAGES, Body, ToolName
from quire.text.conversation import TEXT_ALONE

PARTS = ("input_text", "output_text", "text")
Ignored = Annotated[
    None, BeforeValidator(lambda _given: None), WithJsonSchema({"description": "Accepted and not looked at."})
]
"""Any value, which is dropped at once: it may be long and deep."""
Id = Annotated[str, Field(min_length=1, max_length=128)]
HOSTED = "the server runs no tools, so declare a function and run it in your client"
ITEM_INSTEAD = {
    "custom_tool_call": "send a function_call",
    "custom_tool_call_output": "send a function_call_output",
    "additional_tools": "list them in tools",
    "compaction": "send the items that it stands for",
}
"""By type of an item that only others have: what to do without it."""


def _text_alone(value: Any) -> Any:
    sort = value.get("type") if isinstance(value, dict) else None
    if isinstance(sort, str) and sort not in PARTS:
        raise ValueError(f"content of type {sort[:40]!r} is not supported: {TEXT_ALONE}")
    return value


class TextPart(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None
    prompt_cache_breakpoint: Ignored = None


Part = Annotated[TextPart, BeforeValidator(_text_alone)]
Content = str | Annotated[list[Part], Field(fail_fast=True)]


def text_of(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Sent(Body):
    """What every item may have."""

    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(Sent):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Sent):
    type: Literal["function_call"]
    call_id: Id
    name: ToolName
    arguments: str
    namespace: None = None


class CallOutputItem(Sent):
    type: Literal["function_call_output"]
    call_id: Id
    output: Content
    name: ToolName | None = None


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Body):
    type: Literal["summary_text"]
    text: str


class ReasoningItem(Sent):
    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(fail_fast=True)] | None = None
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = Field(None, description="Accepted and not read: no server but its own can.")


class ReferenceItem(Body):
    type: Literal["item_reference"] = "item_reference"
    id: Id


def _sort(value: Any) -> str:
    """An item without a type is a message, or a reference if it has an id alone."""
    if isinstance(value, Body):
        return str(value.type)  # type: ignore[attr-defined]
    sort = value.get("type") if isinstance(value, dict) else None
    is_reference = isinstance(value, dict) and set(value) <= {"id", "type"}
    return str(sort or ("item_reference" if is_reference and value else "message"))


SORTS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _known(value: Any) -> Any:
    sort = _sort(value)
    if sort not in SORTS:
        instead = ITEM_INSTEAD.get(sort, HOSTED if sort.endswith(("_call", "_output")) else "leave it out")
        raise ValueError(f"an item of type {sort[:40]!r} is not supported: {instead}")
    return value


Known = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")]
)
Item = Annotated[Annotated[Known, Discriminator(_sort)], BeforeValidator(_known)]
Items = Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES - 1, fail_fast=True)]
"""One fewer than the messages of a chat: instructions are one more."""
ItemValue = MessageItem | CallItem | CallOutputItem | ReasoningItem | ReferenceItem
STORED: TypeAdapter[list[ItemValue]] = TypeAdapter(list[Item])
"""Reads a conversation that the store has kept."""
