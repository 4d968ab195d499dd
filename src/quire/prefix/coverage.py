"""What each kind must keep so that a request can continue at a boundary as if it had computed the prefix.

full, latent         every page of the prefix: kept at every unit, so there is nothing to check
window, chunk, sink  the pages of its live set there
state                a checkpoint taken exactly there: one page for the whole prefix
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.core.units import ceil_div
from quire.kinds import Counts, Keeps
from quire.plan.plan import Plan
from quire.prefix.nodes import Chain

Kinds = list[list[int]]
"""For each stage, some of its kinds by number."""
CHECKPOINT_SHARE = 0.5
"""The most of the pool for states that the cache keeps."""
SPARE_TOKENS = 512
"""Least distance between two states that are captured as spares."""


class Coverage:
    """Which pages of which kinds a hit needs, and the bytes that keeping or evicting them takes or frees."""

    def __init__(self, plan: Plan, memories: list[StageMemory]) -> None:
        self.memories = memories
        kinds = [table.plan for memory in memories for table in memory.tables]
        self.disabled = plan.no_reuse_because
        """Why prefixes are not reused; empty if they are."""
        self.unit = plan.reuse_unit_tokens
        self.kinds: Kinds = [list(range(len(memory.tables))) for memory in memories]
        numbered = [list(enumerate(memory.stage.kinds)) for memory in memories]
        self.growing: Kinds = [[i for i, k in own if k.kind.grows] for own in numbered]
        self.tails: Kinds = [[i for i, k in own if k.kind.keeps is Keeps.TAIL] for own in numbered]
        self.states: Kinds = [[i for i, k in own if k.kind.keeps is Keeps.STATE] for own in numbered]
        self.has_states = any(self.states)
        self.has_boundaries = any(self.tails) or self.has_states
        """False: a hit may end at every unit."""
        self._growth_bytes = plan.bytes_per_token
        self.boundary_bytes = float(sum(kind.fixed_bytes for kind in kinds))
        self._state_bytes = plan.checkpoint_bytes
        tailed = [kind for kind in kinds if kind.kind.keeps is Keeps.TAIL]
        self._tail_bytes = sum(kind.token_bytes for kind in tailed)
        """Bytes of one token in all kinds with a tail."""
        self.spare_units = ceil_div(SPARE_TOKENS, self.unit)
        """Distance between two states that are captured as spares."""
        self.pool_bytes = sum(memory.stage.pool_bytes for memory in memories)
        self.most_checkpoints = int(CHECKPOINT_SHARE * self.pool_bytes) // max(1, plan.checkpoint_bytes)
        self.leased_states = 0
        """Checkpoints that leases hold; the share does not bound them."""
        if not self.disabled:
            for memory in memories:
                memory.keep_units(self.unit)

    def usable(self, chain: Chain, boundaries: Counts) -> npt.NDArray[np.bool_]:
        """For each node of a chain: whether every kind has what a hit at its end needs; the last may be partial."""
        usable = np.ones(len(chain), dtype=bool)
        for memory, tails, states in zip(self.memories, self.tails, self.states, strict=True):
            for kind in states:
                usable &= memory.kept[kind].present[chain, 0]
            for kind in tails:
                table, present = memory.tables[kind], memory.kept[kind].present[chain]
                missing = np.concatenate([[0], np.cumsum(~present.ravel())])
                page_tokens = table.plan.page_tokens
                first = table.kind.first_page(boundaries, page_tokens)
                usable &= missing[-(-boundaries // page_tokens)] == missing[first]
                usable &= missing[table.kind.kept_pages(boundaries, page_tokens)] == 0
        return usable

    def needed_units(self, boundary: int) -> tuple[int, int]:
        """Units whose pages kinds with a tail need for a hit at `boundary`: those before the first number, for sinks,
        and those from the second on, a partial unit before the boundary included."""
        sinks, first = 0, ceil_div(boundary, self.unit)
        for memory, kinds in zip(self.memories, self.tails, strict=True):
            for kind in kinds:
                *kept, run = memory.tables[kind].kind.hit_needs(boundary)
                first = min(first, run[0] // self.unit)
                for _, end in kept:
                    sinks = max(sinks, ceil_div(end, self.unit))
        return min(sinks, first), first

    def worth(self, gain: int, is_end: bool) -> float:
        """Tokens saved per byte of a boundary that saves `gain` tokens; `is_end`: those tokens would be evicted too."""
        if not self.has_boundaries:
            return 1.0
        return gain / (gain * is_end * self._growth_bytes + max(1.0, self.boundary_bytes))

    def worths(self, gains: Counts, are_ends: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """The same for several boundaries."""
        if not self.has_boundaries:
            return np.ones(len(gains))
        worths: npt.NDArray[np.float64] = gains / (
            gains * are_ends * self._growth_bytes + max(1.0, self.boundary_bytes)
        )
        return worths

    def spare_worth(self, gain: int, tokens: int, states: int) -> float:
        """The same for spares: tails along `tokens` tokens, and `states` states."""
        return gain / max(1.0, tokens * self._tail_bytes + states * self._state_bytes)

    def bundle_bytes(self, tokens: int) -> float:
        """About how many bytes evicting `tokens` tokens, and the boundary after them, frees."""
        return max(1.0, tokens * self._growth_bytes + self.boundary_bytes)

    def spare_bytes(self, tokens: int) -> float:
        """About how many bytes evicting tails along `tokens` tokens frees."""
        return max(1.0, tokens * self._tail_bytes)

    def has_state(self, node: int) -> bool:
        """Whether the node has a checkpoint of every state."""
        both = zip(self.memories, self.states, strict=True)
        return all(memory.kept[kind].present[node, 0] for memory, own in both for kind in own)

    def has_checkpoint_room(self) -> bool:
        """Whether the share of the pool that checkpoints may take has room for another."""
        kept = [m.kept[kind] for m, own in zip(self.memories, self.states, strict=True) for kind in own]
        return max((int(one.present.sum()) for one in kept), default=0) - self.leased_states < self.most_checkpoints

    def has_free_pages(self, kinds: Kinds) -> bool:
        """Whether there is a free page for each group of these kinds on every stage."""
        for memory, own in zip(self.memories, kinds, strict=True):
            needs = [table.plan.groups if kind in own else 0 for kind, table in enumerate(memory.tables)]
            if memory.pool.sheets_short(needs):
                return False
        return True
