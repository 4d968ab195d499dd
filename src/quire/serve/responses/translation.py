"""A call as the chat that it means: items become messages, and the fields get the names that chats have.

reasoning, message, function_call, function_call ──▶ one message of the assistant
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from quire.serve.errors import ApiError
from quire.serve.questions import FieldNames
from quire.serve.responses.items import CallItem, CallOutputItem, ItemValue, MessageItem, ReasoningItem, text_of
from quire.serve.responses.schemas import LOGPROBS, AllowedFunctions, ChosenFunction, FlatSchema, ResponseBody
from quire.serve.schemas import MOST_MESSAGES, Asked, ChatBody

Json = dict[str, Any]
NAMES = FieldNames("input", "max_output_tokens", "text.format")
SYSTEM = ("system", "developer")


def chat_of(body: ResponseBody, items: Sequence[ItemValue]) -> ChatBody:
    """`items`: the whole conversation."""
    if body.top_logprobs and not body.wants_logprobs:
        raise ApiError(400, f'top_logprobs needs include: ["{LOGPROBS}"]', "invalid_value", "top_logprobs")
    if len(items) >= MOST_MESSAGES:
        size = f"the conversation has {len(items):,} items, {MOST_MESSAGES - 1:,} may be: leave out the oldest"
        raise ApiError(400, size, "invalid_value", "input")
    same = {name: getattr(body, name) for name in (*Asked.model_fields, "parallel_tool_calls")}
    fields = {
        **same,
        "messages": messages_of(items, body.instructions),
        "max_tokens": body.max_output_tokens,
        "logprobs": body.wants_logprobs,
        "top_logprobs": body.top_logprobs if body.wants_logprobs else None,
        "tools": [{"type": "function", "function": _function(tool)} for tool in body.tools or ()] or None,
        "tool_choice": _choice(body.tool_choice),
        "response_format": _format(body),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    return ChatBody.model_validate(fields)


def _function(tool: Any) -> Json:
    return dict(tool.model_dump(exclude={"type"}, exclude_none=True))


def _choice(choice: str | ChosenFunction | AllowedFunctions | None) -> str | Json | None:
    if isinstance(choice, ChosenFunction):
        return _named(choice)
    if isinstance(choice, AllowedFunctions):
        allowed = {"mode": choice.mode, "tools": [_named(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(tool: ChosenFunction) -> Json:
    return {"type": "function", "function": {"name": tool.name}}


def _format(body: ResponseBody) -> Json | None:
    wanted = body.text.format if body.text else None
    if wanted is None:
        return None
    if not isinstance(wanted, FlatSchema):
        return wanted.model_dump()
    schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}


# ── items ────────────────────────────────────────────────────────────────


def messages_of(items: Sequence[ItemValue], instructions: str | None = None) -> list[Json]:
    """Instructions and the system messages that the conversation begins with become one message: many templates take
    one alone, and only there."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        if isinstance(item, MessageItem):
            _say(messages, item)
        elif isinstance(item, CallOutputItem):
            output = text_of(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        elif isinstance(item, CallItem):
            _assistant(messages).setdefault("tool_calls", []).append(_call(item))
        elif isinstance(item, ReasoningItem) and item.content:
            reasoning = "".join(part.text for part in item.content)
            messages.append({"role": "assistant", "content": "", "reasoning_content": reasoning})
    if not messages:
        raise ApiError(400, "the input has no message: give at least 1", "invalid_value", "input")
    return messages


def _say(messages: list[Json], item: MessageItem) -> None:
    text, last = text_of(item.content), messages[-1] if messages else {}
    if item.role in SYSTEM and len(messages) == 1 and last["role"] in SYSTEM:
        last["content"] += f"\n\n{text}"
    elif item.role == "assistant" and set(last) == {"role", "content", "reasoning_content"} and not last["content"]:
        last["content"] = text
    elif item.role == "assistant" and "tool_calls" in last:  # a chat has no order of text and calls
        last["content"] += text
    else:
        messages.append({"role": item.role, "content": text})


def _assistant(messages: list[Json]) -> Json:
    """The assistant's message that a call belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: CallItem) -> Json:
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}


def input_items(body: ResponseBody) -> list[ItemValue]:
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    return list(body.input)


def item_document(item: ItemValue) -> Json:
    """An item as it is kept and listed: complete, with an id and with the text of a message as one part."""
    document: Json = item.model_dump(exclude_none=True, exclude={"id"})
    head: Json = {"id": item.id or f"{PREFIXES[item.type]}_{secrets.token_hex(12)}", "status": "completed"}
    if isinstance(item, ReasoningItem):
        head["summary"] = []
    if isinstance(item, MessageItem):
        is_own = item.role == "assistant"
        part: Json = {"type": "output_text", "annotations": []} if is_own else {"type": "input_text"}
        document["content"] = [{**part, "text": text_of(item.content)}]
    return {**head, **document}


PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
