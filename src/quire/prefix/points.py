"""Points: tokens after which several requests continue, known before the row that computes them has passed.

    leader    ├──── prompt ─────◇─▶ its own outputs      the row stops one token before the prompt's end (◇), keeps a
    branch                      └─▶ outputs              boundary there, copies what it will write to, and goes on
    branch                      └─▶ outputs              the others wait for that, then start there: one copy each

The last token of a prompt is computed by each of them, because the first output is sampled from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from quire.cache.memory import StageMemory
from quire.core.events import RequestEvent
from quire.core.request import Tokens
from quire.core.step import Ints
from quire.kinds import Keeps
from quire.prefix.captures import Captures
from quire.prefix.coverage import Kinds
from quire.prefix.hit import Place, Turn
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import end_key
from quire.prefix.nodes import Chain

Copy = tuple[int, int, Ints, Ints]
"""stage, kind, source, target"""


@dataclass(frozen=True, slots=True)
class RequestForked(RequestEvent):
    """Another request is about to continue from its first `tokens` tokens."""

    name: ClassVar[str] = "forked"
    tokens: int


class RowColumns(Protocol):
    """What is read and set of running requests (`scheduler/rows.py`)."""

    computed: Ints
    limit: Ints
    most: Ints


class Point(NamedTuple):
    tokens: int
    """The row stops here."""
    key: bytes
    """Of these tokens."""


class Points:
    """Which rows stop where, and the boundaries that they keep there."""

    def __init__(self, index: PrefixIndex, memories: list[StageMemory], captures: Captures) -> None:
        self._index, self._memories, self._captures = index, memories, captures
        self.ahead: dict[int, Point] = {}
        """By row."""
        self._rows: dict[bytes, int] = {}
        """By the key of a point: the row that stops there."""

    def branch_off(self, row: int, turn: Turn, rows: RowColumns) -> list[Copy]:
        """Others will continue where the turn ends: keeps a boundary there if the row has come that far, else lets it
        stop there; a row stops at one point. Returns copies to make."""
        tokens, computed = turn.units * self._index.unit + len(turn.rest), rows.computed.item(row)
        if tokens > computed and row not in self.ahead:
            before = turn.keys[turn.units - 1] if turn.units else turn.root
            self.ahead[row] = point = Point(tokens, end_key(before, turn.rest))
            self._rows.setdefault(point.key, row)
            rows.most[row] = tokens
        is_held = tokens == computed or (tokens < computed and not self._index.coverage.has_states)
        return self._keep(row, turn, tokens, computed) if is_held else []

    def arrive(self, rows: RowColumns) -> list[tuple[int, int]]:
        """Rows that have come to their points, with the tokens up to there: they may go on."""
        here = [(row, one.tokens) for row, one in self.ahead.items() if rows.computed[row] >= one.tokens]
        for row, _ in here:
            self.leave(row)
            rows.most[row] = rows.limit[row] - 1
        return here

    def leave(self, row: int) -> None:
        """The row has come to its point, or will not."""
        point = self.ahead.pop(row, None)
        if point is not None and self._rows.get(point.key) == row:
            del self._rows[point.key]

    def computing(self, root: bytes, keys: Sequence[bytes], prompt: Tokens) -> int | None:
        """The row that will keep a boundary before the last token of this prompt."""
        if not self._rows:
            return None
        unit, end = self._index.unit, len(prompt) - 1
        before = keys[end // unit - 1] if end >= unit else root
        return self._rows.get(end_key(before, prompt[end // unit * unit : end]))

    def has_room(self, kinds: Kinds, chain: Chain, is_branch: bool) -> bool:
        """Whether a request that continues from the chain's end can copy its pages of these kinds. Prefixes are evicted
        for a branch, but not this one."""
        if not is_branch or self._index.coverage.has_free_pages(kinds):
            return self._index.coverage.has_free_pages(kinds)
        node = self._index.awaited.add(chain)
        has_room = self._captures.make_room(kinds)
        self._index.awaited.remove(Place(node, self._index.nodes.key[node]))
        return has_room

    def _keep(self, row: int, turn: Turn, tokens: int, computed: int) -> list[Copy]:
        """Keeps a boundary where the turn ends, though the row goes on: from now on the row writes to copies of the
        pages that it shares there. None if there is no room for them, or a window has left what a hit there needs."""
        own = [_written_by_both(memory, tokens, computed) for memory in self._memories]
        if not self._captures.make_room(own) or not self._index.keep_point(row, turn):
            return []
        return [
            (stage, kind, *memory.part(kind, row, tokens))
            for stage, (memory, kinds) in enumerate(zip(self._memories, own, strict=True))
            for kind in kinds
        ]


def _written_by_both(memory: StageMemory, tokens: int, computed: int) -> list[int]:
    """Kinds with a page that is written to after `tokens` tokens, and by a row after `computed`."""

    def is_same(kind: int) -> bool:
        size = memory.tables[kind].plan.page_tokens
        return memory.tables[kind].kind.keeps is Keeps.STATE or tokens // size == computed // size

    return [kind for kind in memory.written_on(tokens) if is_same(kind)]
