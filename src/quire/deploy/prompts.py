"""What the router asks about a call, and which session it belongs to.

    body ──▶ question: the conversation or the prompt, as POST /v1/room takes it ──▶ session

A body that cannot be read has no question: any replica refuses it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from quire.core.errors import QuireError
from quire.serve.anthropic.schemas import MessageBody
from quire.serve.anthropic.translation import chat_of
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.translation import input_items, messages_of

Json = dict[str, Any]
SESSION_HEADER = "x-session-id"
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Asked:
    """About a call."""

    question: bytes
    """The body of POST /v1/room."""
    session: str


def asked_about(path: str, headers: Mapping[str, str], body: Json | None, has_session: bool) -> Asked | None:
    try:
        question = question_of(path, body)
        if question is None:
            return None
        return Asked(json.dumps(question).encode(), session_of(headers, body, question) if has_session else "")
    except RecursionError:  # nested too deeply
        return None


def question_of(path: str, body: Json | None) -> Json | None:
    """The body of POST /v1/room for this call."""
    if body is None:
        return None
    try:
        prompt = _READERS.get(path, _conversation_or_prompt)(body)
    except (ValidationError, QuireError):
        return None
    if prompt is None:
        return None
    limits = [body[name] for name in LIMITS if isinstance(body.get(name), int)]
    return prompt | ({"max_tokens": limits[0]} if limits and limits[0] > 0 else {})


def _conversation_or_prompt(body: Json) -> Json | None:
    if body.get("messages"):
        return {"messages": body["messages"]} | ({"tools": body["tools"]} if body.get("tools") else {})
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # of several prompts, the first one decides
    return {"prompt": prompt} if prompt else None


def _messages(body: Json) -> Json:
    """Anthropic's form."""
    chat = chat_of(MessageBody.model_validate(body), has_late_system=False)
    dumped = chat.model_dump(include={"messages", "tools"}, exclude_none=True, by_alias=True, warnings=False)
    return {name: value for name, value in dumped.items() if value}


def _response(body: Json) -> Json:
    asked = ResponseBody.model_validate(body)
    return {"messages": messages_of(input_items(asked), asked.instructions)}


_READERS: Mapping[str, Callable[[Json], Json | None]] = {"/v1/messages": _messages, "/v1/responses": _response}


def session_of(headers: Mapping[str, str], body: Json | None, question: Json | None) -> str:
    """Equal for the calls of a conversation: what the client names, else what the conversation begins with, up to the
    first message of its user. Empty: not known. Names of one key mean nothing to others."""
    named = headers.get(SESSION_HEADER) or _named(body or {})
    begin = named or _beginning((question or {}).get("messages"))
    if not begin:
        return ""
    credentials = headers.get("authorization", "") + headers.get("x-api-key", "")
    return hashlib.sha256(f"{credentials}\n{begin}".encode(errors="replace")).hexdigest()


def _named(body: Json) -> str:
    retain = body.get("retain")
    session = retain.get("session") if isinstance(retain, dict) else None
    found = body.get("prompt_cache_key") or session
    return found if isinstance(found, str) else ""


def _beginning(messages: Any) -> str:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return ""
    before = list(takewhile(lambda message: message.get("role") != "user", messages))
    return json.dumps(messages[: len(before) + 1], sort_keys=True) if messages else ""
