"""Tools: which an answer may call, how the prompt describes them, and the calls, read out of the answer's text.

Two conventions are read, whichever the model follows:

    <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>      any number, after some text or none
    {"name": "weather", "arguments": {"city": "Paris"}}                             the whole answer is one object

A call that is not JSON, or that names no known tool, stays text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.core.errors import InputError
from quire.text.reasoning import beginning_of

BEGIN, END = "<tool_call>", "</tool_call>"
Tool = Mapping[str, Any]
"""As clients write it: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON."""
    index: int = 0
    """Its place among the calls of its answer."""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)
    """The id by which a message of role `tool` refers to the call that it answers."""

    @property
    def message_part(self) -> dict[str, Any]:
        """As an assistant's message has it, in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Read:
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that an answer may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    only: str | None = None
    """With `must_call`: the one tool to call."""
    most_calls: int | None = None
    """None: any number."""

    def schema(self) -> str | None:
        """The schema of the answer if a call is required."""
        return call_schema(self.tools, self.only) if self.must_call else None

    def reader(self) -> ToolCalls | None:
        return ToolCalls(self.tools, self.most_calls) if self.tools else None


NO_TOOLS = ToolUse()


def tool_use(tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, parallel: bool = True) -> ToolUse:
    """`choice`, as OpenAI writes it: none, auto, required, or a tool by its name."""
    for place, tool in enumerate(tools):
        if _function_name(tool) is None:
            raise InputError(
                f"tools.{place} names no function: give "
                '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
            )
    only = _function_name(choice)
    if only is None and choice not in (None, "none", "auto", "required"):
        raise InputError(
            f"tool_choice is {choice!r:.80}: give none, auto, required or "
            '{"type": "function", "function": {"name": …}}'
        )
    must_call = only is not None or choice == "required"
    if must_call and not tools:
        raise InputError("tool_choice asks for a call and there are no tools: give tools")
    return ToolUse(() if choice == "none" else tuple(tools), must_call, only, None if parallel else 1)


def _function_name(value: Any) -> str | None:
    """Of a tool, or of a choice that names one; None: it is neither."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return str(function["name"]) if isinstance(function, Mapping) and "name" in function else None


def names_of(tools: Sequence[Tool]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]


def call_schema(tools: Sequence[Tool], only: str | None = None) -> str:
    """The JSON schema of one call of one of these tools, for an answer that must be a call."""
    chosen = [tool["function"] for tool in tools if only in (None, tool["function"]["name"])]
    if not chosen:
        raise InputError(
            f"tool_choice names {only!r}, and the tools are {', '.join(names_of(tools))}: name one of them"
        )
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object", "additionalProperties": False},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in chosen
    ]
    return json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})


def instructions(tools: Sequence[Tool]) -> str:
    """For models whose template has no place for tools: a text to put before the conversation instead."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, one JSON description a line:\n{listed}\n"
        f'To call one, write {BEGIN}{{"name": ..., "arguments": {{...}}}}{END} with its name and its arguments.'
    )


class ToolCalls:
    """Reads streamed text. Text before a call passes at once; a call passes when it is complete."""

    def __init__(self, tools: Sequence[Tool], most: int | None = None) -> None:
        """`most`: the most calls of an answer; further ones are left out."""
        self.count = 0
        """Calls read so far."""
        self._names, self._most = names_of(tools), most
        self._held = ""
        self._is_first = True
        """Nothing was returned yet: an answer that begins with a brace may be one whole call."""
        self._is_object = False

    def feed(self, text: str) -> Read:
        self._held += text
        if self._is_first and self._held.strip():
            self._is_first, self._is_object = False, self._held.lstrip().startswith("{")
        return Read() if self._is_first or self._is_object else self._marked()

    def finish(self) -> Read:
        held, self._held = self._held, ""
        call = self._call(held) if self._is_object else self._call(held.partition(BEGIN)[2])
        if call is None:
            return Read(held)
        return self._take("" if self._is_object else held.partition(BEGIN)[0].rstrip(), [call])

    def _marked(self) -> Read:
        content = ""
        calls: list[ToolCall] = []
        while BEGIN in self._held:
            before, _, behind = self._held.partition(BEGIN)
            inside, end, rest = behind.partition(END)
            if not end:
                self._held = BEGIN + behind
                return self._take(content + before, calls)
            call = self._call(inside)
            content += before if call else before + BEGIN + inside + END
            calls += [call] if call else []
            self._held = rest.lstrip("\n")
        sure = len(self._held) - beginning_of(BEGIN, self._held)
        content, self._held = content + self._held[:sure], self._held[sure:]
        return self._take(content, calls)

    def _take(self, content: str, calls: list[ToolCall]) -> Read:
        kept = calls if self._most is None else calls[: max(0, self._most - self.count)]
        first, self.count = self.count, self.count + len(kept)
        return Read(content, tuple(replace(call, index=first + place) for place, call in enumerate(kept)))

    def _call(self, text: str) -> ToolCall | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        return ToolCall(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
