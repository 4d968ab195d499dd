"""Scales of keys and values in 8 bits: one for each head, from what the model makes of a few tokens as it starts.

8 bits with an exponent are as exact for small numbers as for large ones, within limits: scales have to keep every head
within those, no more. So they are powers of two, with room for tokens that are larger than the ones seen here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.core.units import ceil_div
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.arena import Arena, PartView
from quire.worker.attention import Scores
from quire.worker.backends import Accepts, Backend, Pair
from quire.worker.batch import KindBatch, Packed
from quire.worker.mixers.seat import Seat
from quire.worker.quantised import LARGEST

MOST_TOKENS = 64
HEADROOM = 8.0
"""How much larger than the largest number seen here another one may be."""
STRIDE = 7919
"""From one token number to the next: a prime, so that they are spread over the vocabulary."""


class Listener:
    """A backend that remembers how large keys and values of each head were."""

    def __init__(self, backend: Backend, heard: dict[int, torch.Tensor]) -> None:
        self.backend, self.heard = backend, heard

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def accepts(self) -> Accepts:
        return self.backend.accepts

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        return self.backend.prepare(plan, table, packed, device)

    def attend(
        self, kind: KindBatch, parts: Pair[PartView], query: torch.Tensor, new: Pair[torch.Tensor], scores: Scores
    ) -> torch.Tensor:
        for part, values in zip(parts, new, strict=True):
            self.heard[id(part)] = values.float().abs().amax((0, 2))
        return self.backend.attend(kind, parts, query, new, scores)


def find_scales(seat: Seat, vocab_size: int, run: Callable[[Step], object]) -> str:
    """Sets the scales of all parts that have some. Says which they are: pages made with others mean something else."""
    arena = seat.arena
    quantised = [part for parts in arena.layers.values() for part in parts.values() if part.scales is not None]
    count = _most_tokens(arena.stage)
    if not quantised or not count:  # an arena without room for one token is there to be measured, not to be read
        return ""
    heard: dict[int, torch.Tensor] = {}
    backends, seat.backends = seat.backends, tuple(Listener(backend, heard) for backend in seat.backends)
    try:
        run(probe(arena, vocab_size, count))
    finally:
        seat.backends = backends
    for parts in arena.layers.values():
        found = {name: part for name, part in parts.items() if part.scales is not None and id(part) in heard}
        parts.update({name: replace(part, scales=_scales(heard[id(part)])) for name, part in found.items()})
    chosen = [part.scales for parts in arena.layers.values() for part in parts.values() if part.scales is not None]
    return hashlib.sha256(torch.cat(chosen).cpu().numpy().tobytes()).hexdigest()[:16]


def _scales(largest: torch.Tensor) -> torch.Tensor:
    exponents = torch.log2(largest.clamp_min(torch.finfo(torch.float32).tiny) * HEADROOM / LARGEST).ceil()
    return torch.exp2(exponents.clamp(-60, 60))


def probe(arena: Arena, vocab_size: int, count: int) -> Step:
    """One row over pages that nobody has yet."""
    stage = arena.stage
    tables, first_sheet = [], 0
    for number, plan in enumerate(stage.kinds):
        pages = first_sheet * plan.pages_per_sheet + np.arange(plan.groups * _columns(plan, count))
        arena.clear(number, pages)
        tables.append(TableView(stage.addresses(number, pages).reshape(1, plan.groups, -1), 0))
        first_sheet += ceil_div(len(pages), plan.pages_per_sheet)
    one = np.ones(1, dtype=np.int64)
    ids = (np.arange(count) * STRIDE % vocab_size).astype(np.int32)
    return Step(0, 0 * one, 0 * one, count * one, one > 0, one, ids, tables=(tuple(tables),))


def _most_tokens(stage: StagePlan) -> int:
    return next((tokens for tokens in range(MOST_TOKENS, 0, -1) if _sheets(stage, tokens) <= stage.sheets), 0)


def _sheets(stage: StagePlan, tokens: int) -> int:
    return sum(ceil_div(plan.groups * _columns(plan, tokens), plan.pages_per_sheet) for plan in stage.kinds)


def _columns(plan: KindPlan, tokens: int) -> int:
    return 1 if plan.kind.kind == "state" else ceil_div(tokens, plan.page_tokens)
