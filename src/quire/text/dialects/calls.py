"""Tool calls as an answer has them, whole and in pieces."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Tool = Mapping[str, Any]
"""As clients write it: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call, or a piece of one: the first piece begins it, and later ones continue its arguments."""

    name: str
    arguments: str
    """JSON; of a piece: the next part of it."""
    index: int = 0
    """Its place among the calls of its answer."""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)
    """The id by which a message of role `tool` refers to the call that it answers."""
    continues: bool = False
    """A later piece: `arguments` continue those of the call with this index."""
    at: int = field(default=0, compare=False)
    """Characters of the text of the same piece that the model wrote before it."""

    @property
    def message_part(self) -> dict[str, Any]:
        """As an assistant's message has it, in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Read:
    """What a piece of text completed."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


def join_calls(pieces: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Pieces with the arguments of each call joined: whole calls, if all pieces are there."""
    joined: list[ToolCall] = []
    for piece in pieces:
        if piece.continues and joined and joined[-1].index == piece.index:
            joined[-1] = replace(joined[-1], arguments=joined[-1].arguments + piece.arguments)
        else:
            joined.append(piece)
    return tuple(joined)


def names_of(tools: Sequence[Tool]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]


def parameters_of(tool: Tool) -> Mapping[str, Any]:
    """The schema of its arguments; without one it takes none."""
    given = tool["function"].get("parameters")
    return given or {"type": "object", "properties": {}, "additionalProperties": False}
