"""Tools: how a model is told of them, and the calls it makes, read out of its text.

Two conventions are read, whichever the model follows:

    <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>      any number, after some text or none
    {"name": "weather", "arguments": {"city": "Paris"}}                             the whole answer is one object

A call that is no JSON, or that names no known tool, stays text: nothing is made up and nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Read:
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


def names_of(tools: Sequence[Tool]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]


def call_schema(tools: Sequence[Tool], only: str | None = None) -> str:
    """The JSON schema of one call of one of these tools: what an answer must be where a call is required."""
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
    """For models whose template has no place for tools: what is put before the conversation instead."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, one JSON description a line:\n{listed}\n"
        f'To call one, write {BEGIN}{{"name": ..., "arguments": {{...}}}}{END} with its name and its arguments.'
    )


class ToolCalls:
    """Reads streamed text. Text before a call is shown as it comes; a call is told when it is complete."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._names = names_of(tools)
        self._held = ""
        self._is_first = True
        """Nothing was shown yet: an answer that begins with a brace may be a call as a whole."""
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
        return Read("" if self._is_object else held.partition(BEGIN)[0].rstrip(), (call,))

    def _marked(self) -> Read:
        content = ""
        calls: list[ToolCall] = []
        while BEGIN in self._held:
            before, _, behind = self._held.partition(BEGIN)
            inside, end, rest = behind.partition(END)
            if not end:
                self._held = BEGIN + behind
                return Read(content + before, tuple(calls))
            call = self._call(inside)
            content += before if call else before + BEGIN + inside + END
            calls += [call] if call else []
            self._held = rest.lstrip("\n")
        sure = len(self._held) - beginning_of(BEGIN, self._held)
        content, self._held = content + self._held[:sure], self._held[sure:]
        return Read(content, tuple(calls))

    def _call(self, text: str) -> ToolCall | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        return ToolCall(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
