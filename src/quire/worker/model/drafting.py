"""A draft model: fills in the draft tokens that a step left open, on the same pages and tables as the target model.

    step     … 7 3 9 │ ? ? ?        known tokens, and places for three drafts (`DRAFTED`)
    pass 0   7 3 9 ──▶ 4            all known tokens: the draft model computes every token that the target computes
    pass 1   4 ──▶ 4                one token of every row that has more drafts
    pass 2   4 ──▶ 8
    pass 3   8                      for its keys and values alone: it may be accepted

Because it computes every token that the target computes, a page that is reused, moved or freed is so for both models.
Its state after draft i lies in page i, as the target's does. Captures are taken in pass 0: they name only known tokens,
and a captured page has the states of both models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.kinds import Keeps
from quire.plan.plan import StagePlan
from quire.worker.model.model import TorchModel


class DraftModel:
    """Drafts greedily."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model
        self._arena = model.context.arena
        self._states = [kind for kind, plan in enumerate(self._arena.stage.kinds) if plan.kind.keeps is Keeps.STATE]

    def fill(self, step: Step, tokens: np.ndarray) -> np.ndarray:
        """The step's tokens, with drafts in the open places."""
        filled = tokens.copy()
        drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
        known = step.counts - drafts
        first = np.cumsum(step.counts) - drafts
        """Where each row's drafts begin."""
        is_known = np.ones(len(tokens), dtype=np.bool_)
        for begin, count in zip(first[drafts > 0].tolist(), drafts[drafts > 0].tolist(), strict=True):
            is_known[begin : begin + count] = False
        whole = replace(step, counts=known, token_ids=filled[is_known], drafts=None)
        filled[first[drafts > 0]] = self._likeliest(whole, np.cumsum(known)[drafts > 0] - 1)
        for number in range(1, int(drafts.max(initial=0)) + 1):
            entries = np.flatnonzero(drafts >= number)
            more = drafts[entries] > number
            places = first[entries] + number - 1
            single = self._single(step, entries, step.starts + known + number - 1, filled[places], number)
            filled[places[more] + 1] = self._likeliest(single, np.flatnonzero(more))
        return filled

    def _likeliest(self, step: Step, places: np.ndarray) -> np.ndarray:
        """Computes a step; returns the likeliest token after each of these places."""
        device = self._arena.bytes.device
        tokens, last = (torch.from_numpy(array.astype(np.int64)).to(device) for array in (step.token_ids, places))
        logits = self.model.forward(tokens, self.model.prepare(step), last)
        return np.asarray(logits.argmax(-1).cpu().numpy(), dtype=np.int32)

    def _single(self, step: Step, entries: np.ndarray, starts: np.ndarray, tokens: np.ndarray, number: int) -> Step:
        """The step that computes draft `number` of some rows; each draft has its own page of a state."""
        ((*tables,),) = step.tables
        for kind in self._states:
            pages = tables[kind].addresses[step.rows[entries]].astype(np.int64)
            self._arena.repeat(kind, pages[:, :, number - 1].ravel(), pages[:, :, number].ravel())
            tables[kind] = TableView(tables[kind].addresses[:, :, number:], tables[kind].sink_columns)
        return replace(
            step,
            rows=step.rows[entries],
            starts=starts[entries],
            counts=np.ones_like(entries),
            samples=np.ones(len(entries), dtype=np.bool_),
            epochs=step.epochs[entries],
            token_ids=tokens,
            tables=(tuple(tables),),
            drafts=None,
            captures=(),
        )


def part_of(stage: StagePlan, first_layer: int, layers: int) -> StagePlan:
    """A stage as one of two models sees it: the same kinds and pages, its own layers, counted from 0."""
    end = first_layer + layers
    kinds = tuple(
        replace(
            plan,
            layers=tuple(layer - first_layer for layer in plan.layers if first_layer <= layer < end),
            manifest=tuple(
                replace(entry, layer=entry.layer - first_layer)
                for entry in plan.manifest
                if first_layer <= entry.layer < end
            ),
        )
        for plan in stage.kinds
    )
    aliases = tuple((a - first_layer, b - first_layer) for a, b in stage.aliases if first_layer <= a < end)
    return replace(stage, layers=layers, kinds=kinds, aliases=aliases)
