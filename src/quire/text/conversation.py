"""Messages as chat templates read them: text as text, arguments of tool calls as objects. What is not text is refused.

The library passes its caller's messages, the server messages that its schemas have checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quire.core.errors import InputError
from quire.text.templates import Message

MOST_LEVELS = 100
"""Deepest nesting of objects and lists, in a schema and in the arguments of a call."""
TEXT_ALONE = "Quire reads text alone, so send what it says as text"


def template_messages(messages: Sequence[Message], parses_arguments: bool = True) -> list[dict[str, Any]]:
    """Raises with the place of the first message that cannot be read. `parses_arguments`: the template takes the
    arguments of calls as objects, not as JSON text."""
    read = _call if parses_arguments else dict
    return [_template_message(message, f"messages.{place}", read) for place, message in enumerate(messages)]


def with_system_text(messages: Sequence[Message], text: str) -> list[Message]:
    """The conversation with this text at the end of its system message, which is made if there is none."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_system_tools(messages: Sequence[Message], tools: str) -> list[Message]:
    """The conversation with tools as a field of its system message, which is made if there is none."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": tools}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": tools}, *messages]


def why_no_part(part: Any) -> str:
    """Why a part of a message's content cannot be read; empty: it can."""
    sort = part.get("type") if isinstance(part, Mapping) else None
    if sort in ("text", None):
        return ""
    return f"content of type {str(sort)[:40]!r} is not supported: {TEXT_ALONE}"


def why_no_message(role: str, has_content: bool, has_calls: bool) -> str:
    """Why a message has nothing to read; empty if it has."""
    if has_content or (role == "assistant" and has_calls):
        return ""
    if role != "assistant":
        return f"this message of role {role} has no content: give it"
    return "this message of role assistant has neither content nor tool_calls: give one of them"


def is_deeper(value: Any, levels: int) -> bool:
    """Whether a JSON value is nested deeper than `levels`; without recursion."""
    here = [value]
    for _ in range(levels):
        here = [inner for one in here for inner in _inner(one)]
    return any(isinstance(one, (dict, list)) for one in here)


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _template_message(
    message: Message, place: str, read_call: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"{place}.role is missing: give each message a role and content")
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
    if why := why_no_message(role, content is not None, bool(calls)):
        raise InputError(f"{place}: {why}")
    known = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
    read = {**known, "role": "system" if role == "developer" else role, "content": _text(content, f"{place}.content")}
    read |= _thinking(read, bool(calls))
    return {**read, "tool_calls": [read_call(call) for call in calls]} if calls else read


def _thinking(read: Mapping[str, Any], has_calls: bool) -> dict[str, Any]:
    """Reasoning under the name that gpt-oss's template reads, too. That template refuses a message with calls that has
    both content and thinking: there the content counts."""
    thought = read.get("reasoning_content")
    is_refused = has_calls and bool(read["content"])
    return {} if not thought or "thinking" in read or is_refused else {"thinking": thought}


def _text(content: Any, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise InputError(f"{place} is {content!r:.40}: give text or a list of text parts")
    texts = []
    for number, part in enumerate(content):
        if why := why_no_part(part):
            raise InputError(f"{place}.{number}: {why}")
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise InputError(f'{place}.{number} is {part!r:.40}: give {{"type": "text", "text": …}}')
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """The call with its arguments as an object, if they are JSON that is not too deep."""
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    if is_deeper(arguments, MOST_LEVELS):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}
