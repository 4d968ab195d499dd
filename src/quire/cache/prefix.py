"""Prefixes that were computed before, and the pages that still hold them.

    key 0 ─▶ key 1 ─▶ key 2 ─▶ key 3 (leaf)         a node per unit of tokens, under its chained key
      │        │        │        │
    full     full     full     full                 every kind that grows keeps its pages at each node
                      window   window               others keep theirs at tails only: where a prompt or a turn ended

A hit at a boundary is usable only if every kind proves coverage: full the whole prefix, a window its tail, a chunk what
there is of it. Eviction takes leaves, the least recently used first, so no page is kept that nothing can reach.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from quire.cache.memory import FIRST_NODES, StageMemory
from quire.cache.pool import Holder
from quire.kinds import Counts
from quire.plan.plan import Plan


class Miss(str, Enum):
    """Why a prompt found nothing."""

    NO_OVERLAP = "no_overlap"
    BELOW_UNIT = "below_unit"
    TAIL_EVICTED = "tail_evicted"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix of `tokens` tokens that can be adopted, along `nodes`; 0 tokens: a miss, and why."""

    tokens: int
    nodes: tuple[int, ...] = ()
    miss: Miss | None = None


@dataclass(slots=True)
class _Node:
    key: bytes
    parent: int | None
    children: int = 0
    used: int = 0


class PrefixIndex:
    def __init__(self, plan: Plan, memories: list[StageMemory]) -> None:
        self.memories = memories
        kinds = [table.plan for memory in memories for table in memory.tables]
        self.disabled = next(
            (f"{k.name} has no checkpoints yet" for k in kinds if k.kind.kind in ("state", "cross")), ""
        )
        """Why nothing is ever found; empty: prefixes are reused."""
        tokens = (1 if self.disabled else kind.page_tokens for kind in kinds)
        self.unit = math.lcm(plan.match_unit_tokens, *tokens)
        self.nodes: dict[int, _Node] = {}
        self.node_of: dict[bytes, int] = {}
        self._free: list[int] = []
        self._room = FIRST_NODES
        self._clock = 0
        self._leaves: list[tuple[int, int]] = []
        """A heap of (last use, node); stale entries are skipped."""
        self.growing = [[i for i, table in enumerate(m.tables) if table.kind.grows] for m in memories]
        self.others = [[i for i, table in enumerate(m.tables) if not table.kind.grows] for m in memories]
        if not self.disabled:
            for memory in memories:
                memory.keep_units(self.unit)

    # ── looking up ────────────────────────────────────────────────────────

    def find(self, keys: list[bytes], prompt_tokens: int) -> Hit:
        """The greatest boundary that every kind can prove, before the prompt's last token. Changes nothing."""
        if self.disabled:
            return Hit(0, miss=Miss.DISABLED)
        most = (prompt_tokens - 1) // self.unit
        if not most:
            return Hit(0, miss=Miss.BELOW_UNIT)
        chain: list[int] = []
        for key in keys[:most]:
            node = self.node_of.get(key)
            if node is None:
                break
            chain.append(node)
        if not chain:
            return Hit(0, miss=Miss.NO_OVERLAP)
        units = self._provable(np.array(chain))
        return Hit(units * self.unit, tuple(chain[:units])) if units else Hit(0, miss=Miss.TAIL_EVICTED)

    def _provable(self, chain: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """The most units of the chain at whose end each kind finds the pages that its live set touches."""
        boundaries = np.arange(1, len(chain) + 1) * self.unit
        usable = np.ones(len(chain), dtype=bool)
        for memory in self.memories:
            for table, kept in zip(memory.tables, memory.kept, strict=True):
                missing = np.concatenate([[0], np.cumsum(~kept.present[chain].ravel())])
                page_tokens = table.plan.page_tokens
                first = table.kind.first_page(boundaries, page_tokens)
                usable &= missing[boundaries // page_tokens] == missing[first]
                usable &= missing[table.kind.kept_pages(boundaries, page_tokens)] == 0
        found = np.flatnonzero(usable)
        return int(found[-1]) + 1 if len(found) else 0

    def adopt(self, row: int, hit: Hit) -> None:
        """Lets a row start behind a hit: it holds the pages that its live set touches, and computes none of them."""
        self._clock += 1
        for node in hit.nodes:
            self.nodes[node].used = self._clock
        self._remember_leaf(hit.nodes[-1])
        chain = np.array(hit.nodes)
        for memory in self.memories:
            for kind, table in enumerate(memory.tables):
                pages = memory.kept[kind].pages[chain].reshape(-1, table.plan.groups)
                memory.pool.hold(kind, table.adopt(row, hit.tokens, pages), Holder.REQUEST)

    # ── remembering ───────────────────────────────────────────────────────

    def remember(self, row: int, keys: list[bytes], begin: int, end: int, prompt_units: int) -> None:
        """Keeps what a row computed of units [begin, end): the kinds that grow, and the others' tail if `end` is one.

        Tails are kept where the prompt ends and at the newest boundary behind it, so that a later turn finds one.
        """
        self._clock += 1
        nodes = self._nodes(keys, begin, end)
        if not nodes:
            return
        self._keep(self.growing, [row] * len(nodes), nodes, list(range(begin, end)))
        if end >= prompt_units and any(self.others):
            self._keep_tail(row, keys, end)
            self._let_tails_go([keys], [end], [prompt_units])
        self._remember_leaf(nodes[-1])

    def remember_next(
        self, rows: list[int], keys: list[list[bytes]], units: list[int], prompt_units: list[int]
    ) -> None:
        """The same for one new unit of each of many rows, all behind their prompts: what a step of decode brings."""
        self._clock += 1
        chosen: dict[int, int] = {}
        for index, (own, unit) in enumerate(zip(keys, units, strict=True)):
            nodes = self._nodes(own, unit, unit + 1)
            if nodes and nodes[0] not in chosen:
                chosen[nodes[0]] = index
                self._remember_leaf(nodes[0])
        if not chosen:
            return
        order = list(chosen.values())
        row_list, unit_list = [rows[i] for i in order], [units[i] for i in order]
        self._keep(self.growing, row_list, list(chosen), unit_list)
        if any(self.others):
            self._keep(self.others, row_list, list(chosen), unit_list)
            ends = [units[i] + 1 for i in order]
            self._let_tails_go([keys[i] for i in order], ends, [prompt_units[i] for i in order])

    def _keep_tail(self, row: int, keys: list[bytes], end: int) -> None:
        """What kinds that do not grow need for a hit at the end of unit `end`, as far as nodes reach back unbroken."""
        units, nodes = [], []
        first = int(self._first_needed(np.array([end * self.unit]))[0]) // self.unit
        for unit in range(end - 1, first - 1, -1):
            node = self.node_of.get(keys[unit])
            if node is None:
                break
            units.append(unit)
            nodes.append(node)
        self._keep(self.others, [row] * len(nodes), nodes, units)

    def _first_needed(self, boundaries: Counts) -> Counts:
        """The first token that some kind that does not grow must find for a hit; sinks count from the start."""
        tables = [table for memory in self.memories for table in memory.tables if not table.kind.grows]
        firsts = [np.where(t.kind.kept_pages(boundaries, 1) > 0, 0, t.kind.first_live(boundaries)) for t in tables]
        return np.asarray(np.min(firsts, axis=0), dtype=np.int64)

    def _nodes(self, keys: list[bytes], begin: int, end: int) -> list[int]:
        """The nodes of some units, made where they are new; none if what came before was forgotten."""
        parent = self.node_of.get(keys[begin - 1]) if begin else None
        if begin and parent is None:
            return []
        nodes = []
        for key in keys[begin:end]:
            node = self.node_of.get(key)
            if node is None:
                node = self._add(key, parent)
            self.nodes[node].used = self._clock
            nodes.append(node)
            parent = node
        return nodes

    def _keep(self, kinds: list[list[int]], rows: list[int], nodes: list[int], units: list[int]) -> int:
        who, where, which = (np.array(values, dtype=np.int64) for values in (rows, nodes, units))
        return sum(m.keep(own, who, where, which, self.unit) for m, own in zip(self.memories, kinds, strict=True))

    def _let_tails_go(self, keys: list[list[bytes]], ends: list[int], prompt_units: list[int]) -> None:
        """A unit that left the newest tail, and is not part of the prompt's, is of no use to kinds that do not grow."""
        firsts = self._first_needed(np.array(ends, dtype=np.int64) * self.unit)
        for own, first, prompt in zip(keys, (firsts // self.unit).tolist(), prompt_units, strict=True):
            node = self.node_of.get(own[first - 1]) if first - 1 >= prompt else None
            if node is not None:
                for memory, kinds in zip(self.memories, self.others, strict=True):
                    memory.forget(node, kinds)

    def _add(self, key: bytes, parent: int | None) -> int:
        node = self._free.pop() if self._free else len(self.nodes)
        self.nodes[node] = _Node(key, parent)
        self.node_of[key] = node
        if parent is not None:
            self.nodes[parent].children += 1
        if node >= self._room:
            self._room *= 2
            for memory in self.memories:
                memory.widen()
        return node

    def _remember_leaf(self, node: int) -> None:
        heapq.heappush(self._leaves, (self.nodes[node].used, node))
        if len(self._leaves) > 2 * len(self.nodes) + 64:
            self._leaves = [(kept.used, number) for number, kept in self.nodes.items() if not kept.children]
            heapq.heapify(self._leaves)

    # ── forgetting ────────────────────────────────────────────────────────

    def evict_one(self, must: bool) -> bool:
        """Forgets the least recently used leaf that gives a page back.

        If none does and it must be, the oldest leaf goes all the same: behind it lie nodes whose pages may be free.
        False: nothing was forgotten.
        """
        passed: list[tuple[int, int]] = []
        found = None
        while self._leaves and found is None:
            used, number = heapq.heappop(self._leaves)
            node = self.nodes.get(number)
            if node is None or node.used != used or node.children:
                continue
            if any(memory.gives_back(number) for memory in self.memories):
                found = number
            else:
                passed.append((used, number))
        if found is None and must and passed:
            found = passed.pop(0)[1]
        for leaf in passed:
            heapq.heappush(self._leaves, leaf)
        if found is not None:
            self._forget(found, self.nodes[found])
        return found is not None

    def _forget(self, number: int, node: _Node) -> None:
        for memory in self.memories:
            memory.forget(number, range(len(memory.tables)))
        del self.nodes[number], self.node_of[node.key]
        self._free.append(number)
        if node.parent is not None:
            parent = self.nodes[node.parent]
            parent.children -= 1
            if not parent.children:
                self._remember_leaf(node.parent)

    def drop(self) -> None:
        """Forgets everything that no request holds, and everything else with it."""
        for number in sorted(self.nodes, key=lambda number: -self.nodes[number].used):
            self._drop_chain(number)

    def _drop_chain(self, number: int | None) -> None:
        while number is not None and number in self.nodes and not self.nodes[number].children:
            node = self.nodes[number]
            self._forget(number, node)
            number = node.parent
