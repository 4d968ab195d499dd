"""A conversation in Anthropic's form as the chat that it is.

system                            one message of role system, before the others; later ones stay where they are, as
                                  the user's text if the template has no place for them
user: text, tool_result           messages of role user and tool, in this order
assistant: thinking, text, tool_use        one message: reasoning_content, content, tool_calls

Consecutive messages of one role are one turn. Texts of a user and of the system are lines of their own; an assistant's
are joined as they were generated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any, Literal

from quire.serve.anthropic.blocks import (
    AssistantMessage,
    Cacheable,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from quire.serve.anthropic.schemas import (
    Choice,
    ChooseFreely,
    ChooseTool,
    CountBody,
    CustomTool,
    MessageBody,
    ThinkingOn,
)
from quire.serve.errors import ApiError
from quire.serve.retention import longest_mark
from quire.serve.schemas import (
    AsSchema,
    CacheControl,
    CalledFunction,
    CallMade,
    ChatBody,
    Function,
    JsonSchema,
    NamedFunction,
    NamedTool,
    Said,
    Tool,
)

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Names under which chat templates have the switch; a template without it ignores both."""
CHOICES: dict[str, Literal["auto", "required"]] = {"auto": "auto", "any": "required"}
AnyMessage = UserMessage | AssistantMessage | SystemMessage


def chat_of(body: CountBody, has_late_system: bool) -> ChatBody:
    """The parts were validated, and one message may become several: the chat is not validated again.
    `has_late_system`: the template has messages of role system in the middle of a conversation."""
    choice = body.tool_choice
    is_serial = isinstance(choice, Choice) and bool(choice.disable_parallel_tool_use)
    sampled = _sampled(body) if isinstance(body, MessageBody) else {}
    messages = list(_chat_messages(body, has_late_system))
    if mark := longest_mark(_marks(body)):
        messages[-1] = messages[-1].model_copy(update={"cache_control": mark})
    return ChatBody.model_construct(
        model=body.model,
        messages=messages,
        tools=[_tool(tool) for tool in body.tools or ()] or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=not is_serial,
        response_format=_response_format(body),
        continue_final_message=_is_prefilled(body.messages),
        chat_template_kwargs=dict.fromkeys(THINKING_SWITCHES, isinstance(body.thinking, ThinkingOn)),
        **sampled,
    )


def _is_prefilled(messages: Sequence[AnyMessage]) -> bool:
    """Whether the answer continues the last message."""
    last = messages[-1]
    if isinstance(last, AssistantMessage) and any(isinstance(block, ToolUseBlock) for block in last.content):
        message = "the last message has calls without results: end with a message that has a tool_result for each"
        raise ApiError(400, message, "invalid_value", f"messages.{len(messages) - 1}")
    return last.role == "assistant"


def _sampled(body: MessageBody) -> dict[str, Any]:
    if body.thread is not None:
        message = "thread is not supported: Quire keeps no conversations, so send all messages without it"
        raise ApiError(400, message, "thread_unsupported_request", "thread")
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "retain": body.retain,
    }


def _marks(body: CountBody) -> Iterator[CacheControl | None]:
    """Wherever a mark is, the whole turn is kept, for the longest of their times."""
    contents = [body.system, *(message.content for message in body.messages)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    parts = [part for block in blocks if isinstance(block, ToolResultBlock) for part in _blocks(block.content or ())]
    yield from (one.cache_control for one in (body, *blocks, *parts, *(body.tools or ())) if isinstance(one, Cacheable))


# ── tools and formats ────────────────────────────────────────────────────


def _tool(tool: CustomTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return Tool(type="function", function=function)


def _tool_choice(body: CountBody) -> Literal["none", "auto", "required"] | NamedTool | None:
    choice = body.tool_choice
    if isinstance(choice, ChooseTool):
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    if isinstance(choice, ChooseFreely):
        return CHOICES[choice.type]
    return None if choice is None else "none"


def _response_format(body: CountBody) -> AsSchema | None:
    wanted = body.output_config.format if body.output_config else None
    if wanted is None:
        return None
    if _tool_choice(body) not in (None, "auto", "none"):
        message = "a required tool call with an output_config.format is not supported: leave one of them out"
        raise ApiError(400, message, "unsupported_field", "output_config")
    schema = JsonSchema.model_validate({"name": "output", "schema": wanted.schema_})
    return AsSchema(type="json_schema", json_schema=schema)


# ── messages ─────────────────────────────────────────────────────────────


def _chat_messages(body: CountBody, has_late_system: bool) -> Iterator[Said]:
    messages: list[AnyMessage] = list(body.messages)
    if body.system:
        messages.insert(0, SystemMessage(role="system", content=body.system))
    beginning = list(takewhile(lambda message: message.role == "system", messages))
    late = [(message.role, message) for message in messages[len(beginning) :]]
    if not has_late_system:
        late = [("user" if role == "system" else role, message) for role, message in late]
    turns = [*(("system", message) for message in beginning), *late]
    for role, turn in groupby(turns, key=itemgetter(0)):
        yield from TURNS[role]([block for _, message in turn for block in _blocks(message.content)])


def _blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


def _system_turn(blocks: Sequence[TextBlock]) -> Iterator[Said]:
    yield _said("system", _lines(blocks))


def _user_turn(blocks: Sequence[TextBlock | ToolResultBlock]) -> Iterator[Said]:
    """Results stay where they are: templates have them after the calls that they answer."""
    texts: list[TextBlock] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block)
            continue
        yield from _user_text(texts)
        texts = []
        yield _said("tool", _result(block), tool_call_id=block.tool_use_id)
    yield from _user_text(texts)


def _user_text(texts: Sequence[TextBlock]) -> Iterator[Said]:
    if texts:
        yield _said("user", _lines(texts))


def _result(block: ToolResultBlock) -> str:
    """Chat templates have no mark for a failed call: the text says so."""
    text = _lines(_blocks(block.content or ""))
    return f"Error: {text}" if block.is_error else text


def _assistant_turn(blocks: Sequence[Any]) -> Iterator[Said]:
    """Redacted thinking is left out: only its author can read it."""
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    yield _said("assistant", text, reasoning_content=thoughts or None, tool_calls=calls or None)


def _said(role: str, content: str, **more: Any) -> Said:
    return Said.model_validate({"role": role, "content": content, **more})


def _call(block: ToolUseBlock) -> CallMade:
    return CallMade(id=block.id, function=CalledFunction(name=block.name, arguments=json.dumps(block.input)))


def _lines(blocks: Iterable[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


TURNS: dict[str, Callable[[Sequence[Any]], Iterator[Said]]] = {
    "user": _user_turn,
    "assistant": _assistant_turn,
    "system": _system_turn,
}
