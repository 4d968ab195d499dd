"""Scales of keys and values in 8 bits: one per head, as the checkpoint has them, or from the keys and values of a few
tokens at the start.

8 bits with an exponent are equally exact for small and large numbers within their range: scales only have to keep
every head within it. Those found here are powers of two, with headroom for larger numbers than those seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from quire.core.errors import ModelError
from quire.core.step import Step, TableView
from quire.core.units import ceil_div
from quire.kinds import Keeps
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import KindBatch, Packed
from quire.worker.backends.choice import Accepts, Backend, Pair
from quire.worker.mixers.context import ForwardContext
from quire.worker.pages.arena import Arena, PartView
from quire.worker.pages.quantised import LARGEST
from quire.worker.weights.formats.cache import CacheScale, CacheScales

MOST_TOKENS = 64
HEADROOM = 8.0
"""How much larger than the largest number seen here a later one may be."""
NO_SCALES: CacheScales = {}
STRIDE = 7919
"""From one token id to the next: a prime, so that they are spread over the vocabulary."""


class RangeObserver:
    """A backend that records the largest key and value of each head."""

    def __init__(self, backend: Backend, largest: dict[int, torch.Tensor]) -> None:
        self.backend, self.largest = backend, largest

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
            self.largest[id(part)] = values.float().abs().amax((0, 2))
        return self.backend.attend(kind, parts, query, new, scores)


def find_scales(
    context: ForwardContext, vocab_size: int, run: Callable[[Step], object], given: CacheScales = NO_SCALES
) -> str:
    """Sets the scales of all parts that have some; `given`: by the checkpoint. Returns what identifies them: pages with
    other scales differ."""
    arena = context.arena
    quantised = [part for parts in arena.layers.values() for part in parts.values() if part.scales is not None]
    count = most_tokens(arena.stage)
    if not quantised or not count:  # an arena without room for one token only measures memory
        return ""
    largest: dict[int, torch.Tensor] = {}
    backends, context.backends = (
        context.backends,
        tuple(RangeObserver(backend, largest) for backend in context.backends),
    )
    try:
        run(probe(arena, vocab_size, count))
    finally:
        context.backends = backends
    for layer, parts in arena.layers.items():
        found = {name: part for name, part in parts.items() if part.scales is not None and id(part) in largest}
        own = given.get(layer, {})
        parts.update({
            name: replace(part, scales=_scales(largest[id(part)]) if name not in own else _given(own[name], part))
            for name, part in found.items()
        })  # fmt: skip
    chosen = [part.scales for parts in arena.layers.values() for part in parts.values() if part.scales is not None]
    return hashlib.sha256(torch.cat(chosen).cpu().numpy().tobytes()).hexdigest()[:16]


def describe_scales(arena: Arena, given: CacheScales) -> str:
    """Where scales come from: one for the keys and one for the values of each layer. Empty: there are none."""
    shared = {layer for layer, _ in arena.stage.aliases}
    own = {layer: parts for layer, parts in arena.layers.items() if layer not in shared}
    held = [(layer, name) for layer, parts in own.items() for name, part in parts.items() if part.scales is not None]
    if not held:
        return ""
    taken = sum(name in given.get(layer, {}) for layer, name in held)
    others = "" if taken == len(held) else f", {len(held) - taken} found at the start"
    return f"scales of keys and values in 8 bits: {taken} of {len(held)} from the checkpoint{others}"


def _given(scale: CacheScale, part: PartView) -> torch.Tensor:
    assert part.scales is not None
    if scale.numbers.numel() not in (1, len(part.scales)):
        raise ModelError(f"{scale.where} has {scale.numbers.numel()} numbers: 1 or {len(part.scales)} are expected")
    return scale.numbers.to(part.scales.device).expand(len(part.scales)).contiguous()


def _scales(largest: torch.Tensor) -> torch.Tensor:
    exponents = torch.log2(largest.clamp_min(torch.finfo(torch.float32).tiny) * HEADROOM / LARGEST).ceil()
    return torch.exp2(exponents.clamp(-60, 60))


def probe(arena: Arena, vocab_size: int, count: int) -> Step:
    """A step of one row, over pages that are not in use yet."""
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


def last_alone(step: Step) -> Step:
    """Only the last token of a probe that was run, as decode steps compute it."""
    return replace(step, starts=step.counts - 1, counts=step.counts // step.counts, token_ids=step.token_ids[-1:])


def most_tokens(stage: StagePlan) -> int:
    """Of a probe: 0 if there is no room for one token."""
    return next((tokens for tokens in range(MOST_TOKENS, 0, -1) if _sheets(stage, tokens) <= stage.sheets), 0)


def _sheets(stage: StagePlan, tokens: int) -> int:
    return sum(ceil_div(plan.groups * _columns(plan, tokens), plan.pages_per_sheet) for plan in stage.kinds)


def _columns(plan: KindPlan, tokens: int) -> int:
    return 1 if plan.kind.keeps is Keeps.STATE else ceil_div(tokens, plan.page_tokens)
