"""Attention over a sparse index: transformers' own indexer, on index keys in pages.

    indexer     writes the new tokens' index keys, scores all keys that each row reads ─▶ the best tokens of each query
    attention   over latents (`latent.py`), with masks that show a query only the tokens selected for it

A layer passes the result of its indexer to its attention as `indices`. Here the result is the kind's batch with
narrower masks. A layer without an indexer of its own receives the result of an earlier layer from transformers' model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from quire.core.errors import ModelError
from quire.worker.backends.attention import gather, write
from quire.worker.backends.batch import KindBatch, Reading
from quire.worker.mixers import latent
from quire.worker.mixers.context import ForwardContext
from quire.worker.pages.arena import PartView

NO_MASK = torch.empty(1, 1, 0, 0)


def attach(module: Any, context: ForwardContext) -> None:
    """Connects a layer of latent attention and its indexer."""
    latent.attach(module)
    module.forward = partial(_forward, module)
    if module.indexer is not None:
        module.indexer.forward = IndexMixer(module.indexer, context)


def _forward(module: Any, *given: Any, attention_mask: None = None, **options: Any) -> Any:
    """A layer cuts its indexer's mask out of its own, and has none: what a query sees is in the batch."""
    del attention_mask
    return type(module).forward(module, *given, attention_mask=NO_MASK, **options)


@dataclass(frozen=True, slots=True, eq=False)
class IndexKeys:
    """The index keys of some rows, as a cache of transformers."""

    part: PartView
    new: KindBatch
    """Where the rows' new tokens go."""
    reading: Reading

    def update_indexer(self, keys: torch.Tensor, _layer: int) -> torch.Tensor:
        """(row, new token, width) in, (row, token, width) out."""
        write(self.new, self.part, keys.flatten(0, 1)[:, None])
        return gather(self.reading, self.part, keys.dtype)[:, 0]


class IndexMixer:
    """Replaces an indexer's forward: cuts the packed batch into rows, and selects tokens for their queries."""

    def __init__(self, indexer: Any, context: ForwardContext) -> None:
        parts = context.arena.layers[indexer.layer_idx]
        if "index" not in parts:
            raise ModelError(f"layer {indexer.layer_idx} has an indexer, and the plan keeps no index keys there")
        self.forward = partial(type(indexer).forward, indexer)
        self.context = context
        self.part = parts["index"]

    def __call__(
        self,
        hidden_states: torch.Tensor,
        query_latents: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        *_others: Any,
        **_options: Any,
    ) -> KindBatch:
        kind = self.context.running().kinds[self.part.kind]
        inputs = [tensor[0] for tensor in (hidden_states, query_latents, *position_embeddings)]
        return replace(kind, readings=tuple(self._select(kind, reading, inputs) for reading in kind.readings))

    def _select(self, kind: KindBatch, reading: Reading, inputs: Sequence[torch.Tensor]) -> Reading:
        """The reading with a mask of what its queries select among the tokens that they see."""
        hidden, latents, cosines, sines = (tensor[reading.queries] for tensor in inputs)
        cut = self.part.cut
        keys = IndexKeys(self.part, KindBatch({cut: kind.new[cut][reading.queries].flatten()}), reading)
        shape = (*reading.queries.shape, reading.tokens[cut].shape[1])
        seen = hidden.new_ones(shape, dtype=torch.bool) if reading.mask is None else reading.mask
        best = self.forward(hidden, latents, (cosines, sines), seen, None, past_key_values=keys)
        selected = torch.zeros_like(seen).scatter_(-1, best.long(), True)
        return replace(reading, mask=selected & seen, is_causal=False)
