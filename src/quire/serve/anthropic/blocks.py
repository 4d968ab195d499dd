"""Content of messages: the blocks that Quire reads. Others are refused by their type and place."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from quire.serve.schemas import Body, CacheControl, FlatEnough, ToolName
from quire.text.conversation import TEXT_ALONE, why_no_part

LONGEST_ID = 256
BlockId = Annotated[str, Field(max_length=LONGEST_ID)]
Input = Annotated[dict[str, Any], FlatEnough, WithJsonSchema({"type": "object", "maxProperties": 4})]


class Cacheable(Body):
    cache_control: CacheControl | None = None


class TextBlock(Cacheable):
    type: Literal["text"]
    text: str
    citations: None = None


class ThinkingBlock(Body):
    """Reasoning that a client hands back."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Not looked at.")


class RedactedThinkingBlock(Body):
    type: Literal["redacted_thinking"]
    data: str = Field(description="Not looked at.")


class DirectCaller(Body):
    type: Literal["direct"]


class ToolUseBlock(Cacheable):
    type: Literal["tool_use"]
    id: BlockId
    name: ToolName
    input: Input
    caller: DirectCaller | None = None
    toolset_name: None = None


def _text_alone(value: Any) -> Any:
    if why := why_no_part(value):
        raise ValueError(why)
    return value


Text = Annotated[TextBlock, BeforeValidator(_text_alone)]
TextContent = str | Annotated[list[Text], Field(fail_fast=True)]


class ToolResultBlock(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: BlockId
    content: TextContent | None = None
    is_error: bool | None = None
    toolset_name: None = None


def _known(kinds: tuple[str, ...], role: str) -> BeforeValidator:
    """Refuses other blocks by their type. What is no object is left to the schema."""

    def check(value: Any) -> Any:
        kind = value.get("type", "") if isinstance(value, dict) else kinds[0]
        if kind in kinds:
            return value
        instead = f"a message of role {role} has {', '.join(kinds)}" if kind in SORTS or not kind else TEXT_ALONE
        raise ValueError(f"content of type {str(kind)[:40]!r} is not supported here: {instead}")

    return BeforeValidator(check)


def _tag(value: Any) -> str:
    """Not the bare type: a tag that is also the name of a field would be taken for one in the path of an error."""
    kind = value.get("type") if isinstance(value, dict) else None
    return f"block:{kind if isinstance(kind, str) else 'text'}"


SORTS = ("text", "tool_result", "thinking", "redacted_thinking", "tool_use")
UserBlock = Annotated[
    Annotated[TextBlock, Tag("block:text")] | Annotated[ToolResultBlock, Tag("block:tool_result")],
    Discriminator(_tag),
    _known(SORTS[:2], "user"),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("block:text")]
    | Annotated[ThinkingBlock, Tag("block:thinking")]
    | Annotated[RedactedThinkingBlock, Tag("block:redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("block:tool_use")],
    Discriminator(_tag),
    _known((SORTS[0], *SORTS[2:]), "assistant"),
]
Blocks = Field(min_length=1, fail_fast=True)


class UserMessage(Body):
    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Blocks]


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Blocks]


class SystemMessage(Body):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: str | Annotated[list[Text], Blocks]


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Discriminator("role")]
