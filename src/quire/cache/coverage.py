"""What each kind must keep so that a request may go on at a boundary as if it had computed the prefix.

full, latent         every page of the prefix: kept at every unit, so nothing is left to prove
window, chunk, sink  the pages that its live set touches there
state                a checkpoint taken exactly there: one page that stands for the whole prefix
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.cache.nodes import Chain
from quire.core.units import ceil_div
from quire.kinds import Counts
from quire.plan.plan import Plan

Kinds = list[list[int]]
"""For each stage, some of its kinds by number."""
CHECKPOINT_SHARE = 0.5
"""Of the pool, at most, for states that the cache keeps."""
STATE_TOKENS = 1024
"""What a model that has states alone is thought to pay for one, in tokens; it scales all its ranks alike."""


class Coverage:
    def __init__(self, plan: Plan, memories: list[StageMemory]) -> None:
        self.memories = memories
        kinds = [table.plan for memory in memories for table in memory.tables]
        self.disabled = plan.no_reuse_because
        """Why nothing is ever found; empty: prefixes are reused."""
        self.unit = plan.reuse_unit_tokens
        self.kinds: Kinds = [list(range(len(memory.tables))) for memory in memories]
        numbered = [list(enumerate(memory.stage.kinds)) for memory in memories]
        self.growing: Kinds = [[i for i, k in own if k.kind.grows] for own in numbered]
        self.tails: Kinds = [[i for i, k in own if not k.kind.grows and k.kind.kind != "state"] for own in numbered]
        self.states: Kinds = [[i for i, k in own if k.kind.kind == "state"] for own in numbered]
        self.has_states = any(self.states)
        self.has_boundaries = any(self.tails) or self.has_states
        """False: a hit may end at every unit."""
        self._growth_bytes = plan.bytes_per_token
        self._boundary_bytes = sum(kind.fixed_bytes for kind in kinds)
        pool_bytes = sum(memory.stage.pool_bytes for memory in memories)
        self.most_checkpoints = int(CHECKPOINT_SHARE * pool_bytes) // max(1, plan.checkpoint_bytes)
        if not self.disabled:
            for memory in memories:
                memory.keep_units(self.unit)

    def usable(self, chain: Chain, boundaries: Counts) -> npt.NDArray[np.bool_]:
        """At which nodes' ends of a chain every kind finds what a hit there needs; the last may be cut short."""
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
        and those from the second on; one cut short by the boundary counts."""
        sinks, first = 0, ceil_div(boundary, self.unit)
        for memory, kinds in zip(self.memories, self.tails, strict=True):
            for kind in kinds:
                *kept, run = memory.tables[kind].kind.hit_needs(boundary)
                first = min(first, run[0] // self.unit)
                for _, end in kept:
                    sinks = max(sinks, ceil_div(end, self.unit))
        return min(sinks, first), first

    def worth(self, tokens: int) -> float:
        """Tokens saved per byte of what `tokens` tokens and the boundary behind them keep; 1 if they keep no tail."""
        if not self.has_boundaries:
            return 1.0
        growth = tokens * self._growth_bytes
        if not growth:
            return tokens / STATE_TOKENS
        return growth / (growth + self._boundary_bytes)

    def bundle_bytes(self, tokens: int) -> float:
        """About what forgetting so many tokens, and the boundary behind them, gives back."""
        return max(1.0, tokens * self._growth_bytes + self._boundary_bytes)

    def has_checkpoint_room(self) -> bool:
        """Whether the share of the pool that checkpoints may take has room for another."""
        kept = [m.kept[kind] for m, own in zip(self.memories, self.states, strict=True) for kind in own]
        return max((int(one.present.sum()) for one in kept), default=0) < self.most_checkpoints
