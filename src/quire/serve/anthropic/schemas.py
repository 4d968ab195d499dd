"""Bodies of the Messages API: the fields that Quire honours or may ignore. Others are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from quire.serve.anthropic.blocks import Cacheable, Message, TextContent
from quire.serve.schemas import (
    MOST_MESSAGES,
    MOST_STOPS,
    MOST_TOOLS,
    Body,
    Few,
    FlatEnough,
    RetainBody,
    Schema,
    StopText,
    ToolName,
)

Ignored = Annotated[dict[str, Any], Few, FlatEnough]


class CustomTool(Cacheable):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Schema
    strict: bool | None = Field(None, description="Not looked at: a required call keeps its schema anyway.")
    eager_input_streaming: bool | None = Field(None, description="Not looked at: arguments are sent as they come.")
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(max_length=1, fail_fast=True)] | None = None


def _clients_own(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in (None, "custom"):
        return value
    instead = "Quire runs no tools, so describe yours with name, description and input_schema"
    raise ValueError(f"a tool of type {str(kind)[:40]!r} is not supported: {instead}")


Tools = Annotated[
    list[Annotated[CustomTool, BeforeValidator(_clients_own)]], Field(max_length=MOST_TOOLS, fail_fast=True)
]


class Choice(Body):
    disable_parallel_tool_use: bool | None = None


class ChooseFreely(Choice):
    type: Literal["auto", "any"]


class ChooseTool(Choice):
    type: Literal["tool"]
    name: ToolName


class ChooseNone(Body):
    type: Literal["none"]


class ThinkingOn(Body):
    """Limits are not looked at: reasoning counts as output, and `max_tokens` bounds both."""

    type: Literal["enabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = Field(None, description="Not looked at.")
    display: Literal["summarized", "omitted"] | None = Field(None, description="Not looked at: it is always shown.")


class ThinkingOff(Body):
    type: Literal["disabled", "between_tools"]


class OutputSchema(Body):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description="Not looked at.")
    format: OutputSchema | None = None


class Metadata(Body):
    user_id: Annotated[str, Field(max_length=512)] | None = Field(None, description="Not looked at.")


class CountBody(Cacheable):
    """A conversation whose tokens are counted."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    system: TextContent | None = None
    tools: Tools | None = None
    tool_choice: Annotated[ChooseFreely | ChooseTool | ChooseNone, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingOn | ThinkingOff, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    context_management: Ignored | None = Field(None, description="Not looked at: nothing is cleared.")


class MessageBody(CountBody):
    """A conversation to answer."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 30)]
    stop_sequences: Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    metadata: Metadata | None = None
    retain: RetainBody | None = Field(None, description="Quire's own: lease prompt and answer (docs/leases.md).")
    service_tier: Literal["auto", "standard_only"] | None = None
    thread: Annotated[Ignored, WithJsonSchema({"type": "null"})] | None = Field(
        None, description="Refused unless null, with the code on which the official client sends whole conversations."
    )
