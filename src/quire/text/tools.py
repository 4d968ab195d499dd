"""Tools: which an answer may call, how the prompt describes them, and the grammar of a call that is required.

`dialects` has the ways in which models write calls, and reads them out of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InputError
from quire.core.sampling import Grammar
from quire.text.dialects.calls import Tool, names_of
from quire.text.dialects.dialect import Dialect
from quire.text.dialects.enforced import call_grammar
from quire.text.dialects.reader import ToolCalls
from quire.text.dialects.table import PLAIN


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that an answer may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    allowed: tuple[str, ...] | None = None
    """Names of the tools that may be called: the prompt describes the others too. None: all."""
    most_calls: int | None = None
    """None: any number."""
    dialect: Dialect = PLAIN

    def grammar(self, tokens: Mapping[str, int]) -> Grammar | None:
        """The grammar of the answer if a call is required. `tokens`: added tokens of the tokenizer, by their text."""
        self.require_known()
        if not self.must_call:
            return None
        return call_grammar(self.dialect, self._callable(), tokens, self.most_calls == 1)

    def require_known(self) -> None:
        """Raises if a tool that may be called is not offered."""
        names = names_of(self.tools)
        for name in self.allowed or ():
            if name not in names:
                raise InputError(f"tool_choice names {name!r}, and the tools are {', '.join(names)}: name one of them")

    def reader(self) -> ToolCalls | None:
        return ToolCalls(self._callable(), self.most_calls, self.dialect) if self.tools else None

    def _callable(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if self.allowed is None or tool["function"]["name"] in self.allowed)


NO_TOOLS = ToolUse()


def tool_use(
    tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, parallel: bool = True, dialect: Dialect = PLAIN
) -> ToolUse:
    """`choice`, as OpenAI writes it: none, auto, required, a tool by its name, or a mode with the tools allowed."""
    for place, tool in enumerate(tools):
        if _function_name(tool) is None:
            raise InputError(
                f"tools.{place} names no function: give "
                '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
            )
    mode, allowed, is_single = _choice(choice)
    if mode == "required" and not tools:
        raise InputError("tool_choice asks for a call and there are no tools: give tools")
    most_calls = 1 if is_single or not parallel else None
    return ToolUse(() if mode == "none" else tuple(tools), mode == "required", allowed, most_calls, dialect)


def _choice(choice: str | Mapping[str, Any] | None) -> tuple[str, tuple[str, ...] | None, bool]:
    """The mode (none, auto, required), the names that may be called (None: all), and whether one call is enough."""
    if (only := _function_name(choice)) is not None:
        return "required", (only,), True
    if isinstance(choice, Mapping) and isinstance(subset := choice.get("allowed_tools"), Mapping):
        names = tuple(_function_name(tool) for tool in subset.get("tools", ()))
        named = tuple(name for name in names if name is not None)
        if subset.get("mode") in ("auto", "required") and named and len(named) == len(names):
            return str(subset["mode"]), named, False
    if choice is None or choice in ("none", "auto", "required"):
        return str(choice or "auto"), None, False
    raise InputError(
        f"tool_choice is {choice!r:.80}: give none, auto, required, "
        '{"type": "function", "function": {"name": …}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": …}]}}'
    )


def _function_name(value: Any) -> str | None:
    """Of a tool, or of a choice that names one; None: it is neither."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return str(function["name"]) if isinstance(function, Mapping) and "name" in function else None


def instructions(tools: Sequence[Tool], dialect: Dialect = PLAIN) -> str:
    """For models whose template has no place for tools: a text to put before the conversation instead."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, one JSON description a line:\n{listed}\n"
        f"To call one, write {dialect.example} with its name and its arguments."
    )
