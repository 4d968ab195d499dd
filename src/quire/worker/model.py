"""transformers' own model code on Quire's memory: its attention interface is the seam.

A model is built with attention `quire`; while a step runs, its layers find the batch in the `Seat` that they belong to.
Layers that keep other things than keys and values are served by `mixers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig

from quire.core.step import Step
from quire.worker import opaque
from quire.worker.arena import Arena
from quire.worker.attention import Scores
from quire.worker.backends import REFERENCE, Backend, choose
from quire.worker.batch import Batch, Padding, make_batch
from quire.worker.linears import lay_out
from quire.worker.loading import load_checkpoint
from quire.worker.mixers import attach, latent
from quire.worker.mixers.seat import Seat
from quire.worker.positions import chosen_ropes
from quire.worker.scales import find_scales
from quire.worker.uploads import Upload
from quire.worker.weights.write import Advance

NAME = "quire"


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """(1, head, token, width) as transformers hands them over."""
    del attention_mask, dropout
    seat: Seat = module.quire_seat
    scores = Scores(scaling if scaling is not None else query.shape[-1] ** -0.5, softcap, s_aux)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if getattr(module, "quire_is_latent", False):
        return latent.attend(module, seat, q, k, v, scores)[None], None
    return seat.attend(module, q, k, v, scores, v.shape[-1])[None], None


def register() -> None:
    """Nobody makes masks for it: transformers would ask the device how prompts are packed, and wait for the answer."""
    AttentionInterface.register(NAME, _attention)


class TorchModel:
    """A causal language model of transformers that reads and writes an arena."""

    def __init__(
        self,
        model: Any,
        arena: Arena,
        backends: Sequence[Backend] = (REFERENCE,),
        is_compiled: bool = False,
        is_invariant: bool = False,
    ) -> None:
        """`is_compiled`: torch.compile fuses what lies between kernels. `is_invariant`: nothing depends on the batch,
        if no step has a single token."""
        self.model, self.is_invariant = model.eval(), is_invariant
        self.ropes = chosen_ropes(model)
        """Rotary frequencies that follow from the plan's longest length, as the plan calls them."""
        lay_out(model)
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.choices = choose(arena.stage, arena.bytes.device.type, backends)
        self.seat = Seat(arena, tuple(choice.backend for choice in self.choices))
        self.seat.number = opaque.number_of(self.seat) if is_compiled else 0
        attach(model, self.seat)
        self.scales = find_scales(self.seat, self.vocab_size, self._probe)
        """Which scales keys and values in 8 bits have; empty: none."""
        if is_compiled:
            opaque.compile_layers(model, is_invariant)

    def _probe(self, step: Step) -> torch.Tensor:
        device = self.seat.arena.bytes.device
        ids = torch.from_numpy(step.token_ids.astype(np.int64)).to(device)
        return self.forward(ids, self.prepare(step), torch.zeros(1, dtype=torch.int64, device=device))

    def prepare(self, step: Step, upload: Upload | None = None, padding: Padding | None = None) -> Batch:
        """The step, spelled out for each kind's backend."""
        arena = self.seat.arena
        prepares = [backend.prepare for backend in self.seat.backends]
        return make_batch(step, arena.stage, step.tables[0], arena.bytes.device, prepares, upload, padding)

    def forward(self, token_ids: torch.Tensor, batch: Batch, last: torch.Tensor) -> torch.Tensor:
        """Logits of the packed tokens at places `last`: (place, vocabulary), in fp32."""
        return self.logits(token_ids, batch, last).float()

    def pieces(self, token_ids: torch.Tensor, batch: Batch, places: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The same for one set of places after another. Layers run once; nothing here holds on to a piece."""
        if len(places) == 1:
            yield self.forward(token_ids, batch, places[0])
            return
        decoder, kept = _decoder(self.model), []
        hook = decoder.register_forward_hook(lambda _module, _given, output: kept.append(output))
        try:
            piece = [self.forward(token_ids, batch, places[0])]
        finally:
            hook.remove()
        yield piece.pop()
        for wanted in places[1:]:
            with _answering(decoder, kept[0]):
                piece.append(self.forward(token_ids, batch, wanted))
            yield piece.pop()

    @torch.inference_mode()
    def logits(self, token_ids: torch.Tensor, batch: Batch, last: torch.Tensor | int) -> torch.Tensor:
        """The same, as the model yields them; `last` 0: of all tokens."""
        self.seat.batch = batch
        is_alone = self.seat.number and len(token_ids) == 1
        try:
            with opaque.uncompiled() if is_alone else nullcontext():
                out = self.model(
                    input_ids=token_ids[None],
                    position_ids=batch.positions[None],
                    attention_mask=None,
                    use_cache=False,
                    logits_to_keep=last,
                )
        finally:
            self.seat.batch = None
        logits: torch.Tensor = out.logits
        return logits[0]


def _decoder(model: Any) -> Any:
    """All layers, without the head."""
    found = model.get_decoder()
    return model.model if found is model else found  # Llama 4 names a part that it does not have


@contextmanager
def _answering(module: Any, output: Any) -> Iterator[None]:
    """While this lasts, a module yields what it did before, and computes nothing."""
    module.forward = lambda *_given, **_named: output
    try:
        yield
    finally:
        del module.forward


def build(config: PreTrainedConfig, dtype: torch.dtype) -> Any:
    """A model with random weights, as its configuration says."""
    register()
    return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=NAME, dtype=dtype
    )


def load(folder: Path, dtype: torch.dtype, advance: Advance | None = None) -> Any:
    """A model with the weights of a checkpoint folder."""
    register()
    return load_checkpoint(folder, dtype, NAME, advance)
