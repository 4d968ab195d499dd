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
    only: str | None = None
    """With `must_call`: the one tool to call, once."""
    most_calls: int | None = None
    """None: any number."""
    dialect: Dialect = PLAIN

    def grammar(self, tokens: Mapping[str, int]) -> Grammar | None:
        """The grammar of the answer if a call is required. `tokens`: added tokens of the tokenizer, by their text."""
        if not self.must_call:
            return None
        self.require_known()
        chosen = [tool for tool in self.tools if self.only in (None, tool["function"]["name"])]
        is_single = self.only is not None or self.most_calls == 1
        return call_grammar(self.dialect, chosen, tokens, is_single)

    def require_known(self) -> None:
        """Raises if the one tool to call is not offered."""
        names = names_of(self.tools)
        if self.only is not None and self.only not in names:
            raise InputError(f"tool_choice names {self.only!r}, and the tools are {', '.join(names)}: name one of them")

    def reader(self) -> ToolCalls | None:
        return ToolCalls(self.tools, self.most_calls, self.dialect) if self.tools else None


NO_TOOLS = ToolUse()


def tool_use(
    tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, parallel: bool = True, dialect: Dialect = PLAIN
) -> ToolUse:
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
    return ToolUse(() if choice == "none" else tuple(tools), must_call, only, None if parallel else 1, dialect)


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
