"""transformers' own model code on Quire's memory, connected through transformers' attention interface.

A model is built with attention `quire`. While a step runs, its layers find the batch in the model's `ForwardContext`.
`mixers` serve layers that keep other things than keys and values.
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
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import KindBatch, Padding, StepBatch, make_batch
from quire.worker.backends.choice import REFERENCE, Backend, choose
from quire.worker.mixers import latent
from quire.worker.mixers.attach import attach
from quire.worker.mixers.context import ForwardContext
from quire.worker.model import compilation
from quire.worker.model.lean import LeanModel, refusal
from quire.worker.model.linears import lay_out
from quire.worker.model.native_layers import NativeModel, native_model
from quire.worker.model.own_attention import adapt, allow, has_slopes, shares_blocks, stated_type
from quire.worker.model.packed_cpu import describe_products
from quire.worker.model.packed_loading import load_packed
from quire.worker.model.positions import chosen_ropes
from quire.worker.model.scales import NO_SCALES, describe_scales, find_scales, last_alone, most_tokens, probe
from quire.worker.pages.arena import Arena
from quire.worker.pages.uploads import Upload
from quire.worker.weights.formats.cache import read_cache_scales
from quire.worker.weights.formats.choice import packed_readers
from quire.worker.weights.loading import load_checkpoint
from quire.worker.weights.write import Advance

NAME = "quire"
LEAN_TOKENS = 16
"""Tokens for which lean layers are compared with transformers'."""


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
    *,
    indices: KindBatch | None = None,
    alibi: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of transformers' interface: (1, head, token, width) in. `indices`: the result
    of an indexer (`mixers/indexed.py`). `alibi`: slopes (head,) by which scores lose with distance."""
    del attention_mask, dropout
    context: ForwardContext = module.quire_context
    scores = Scores(scaling if scaling is not None else query.shape[-1] ** -0.5, softcap, s_aux, alibi)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if getattr(module, "quire_is_latent", False):
        return latent.attend(module, context, q, k, v, scores, selected=indices)[None], None
    return context.attend(module, q, k, v, scores, v.shape[-1])[None], None


def register() -> None:
    """Registers the attention function without a mask function: to make masks, transformers would wait for the
    device."""
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
        """`is_compiled`: torch.compile fuses the operations between kernels. `is_invariant`: results do not depend on
        the batch, if no step has a single token."""
        self.model, self.is_invariant = model.eval(), is_invariant
        self.ropes = chosen_ropes(model)
        """Rotary frequencies that depend on the plan's longest length, by the plan's names for them."""
        lay_out(model)
        self.vocab_size: int = model.config.get_text_config().vocab_size
        if any(plan.kind.selects and plan.manifest for plan in arena.stage.kinds) or shares_blocks(model):
            is_compiled = False  # layers pass each other selections, which are not tensors; a shared block has no layer
        self.choices = choose(arena.stage, arena.bytes.device.type, backends, has_slopes(model))
        self.context = ForwardContext(arena, tuple(choice.backend for choice in self.choices), is_compiled)
        self.compiles_one = False
        """Whether compiled layers compute a single token too, which they are compiled for once more."""
        attach(model, self.context)
        self.lean: LeanModel | None = None
        """Runs the model without transformers' modelling code."""
        given = getattr(model, "quire_cache_scales", NO_SCALES)
        self.scales = find_scales(self.context, self.vocab_size, self._probe, given)
        """Identifies the scales of keys and values in 8 bits; empty: there are none."""
        self.origin_of_scales = describe_scales(arena, given)
        if is_compiled:
            compilation.compile_layers(model, is_invariant)
        if not is_compiled:
            self.lean = self._make_lean()

    def _make_lean(self) -> LeanModel | None:
        if hasattr(self.model, "quire_share"):  # a share's layers add what ranks compute: lean ones do not
            return None
        decoder, arena = _decoder(self.model), self.context.arena
        count = min(LEAN_TOKENS, most_tokens(arena.stage))
        if not count or refusal(decoder, self.context):
            return None
        step = probe(arena, self.vocab_size, count)
        expected = self._probe(step)
        for lean in (native_model(self.model, decoder, self.context), LeanModel(self.model, decoder, self.context)):
            self.lean = lean
            if lean is None or not lean.is_near(self._probe(step), expected):
                continue
            if lean.is_near(self._probe(last_alone(step)), expected[-1:]):
                return lean
        return None

    def describe_products(self) -> tuple[str, ...]:
        """What multiplies packed weights on a CPU."""
        return describe_products(self.model, isinstance(self.lean, NativeModel))

    def _probe(self, step: Step) -> torch.Tensor:
        """Logits of all tokens."""
        ids = torch.from_numpy(step.token_ids.astype(np.int64)).to(self.context.arena.bytes.device)
        return self.logits(ids, self.prepare(step), 0)

    def prepare(self, step: Step, upload: Upload | None = None, padding: Padding | None = None) -> StepBatch:
        """The step, spelled out for each kind's backend."""
        arena = self.context.arena
        prepares = [backend.prepare for backend in self.context.backends]
        return make_batch(step, arena.stage, step.tables[0], arena.bytes.device, prepares, upload, padding)

    def forward(self, token_ids: torch.Tensor, batch: StepBatch, last: torch.Tensor) -> torch.Tensor:
        """Logits of the packed tokens at places `last`: (place, vocabulary), in fp32."""
        return self.logits(token_ids, batch, last).float()

    def pieces(
        self, token_ids: torch.Tensor, batch: StepBatch, places: Sequence[torch.Tensor]
    ) -> Iterator[torch.Tensor]:
        """The same for one set of places after another. Layers run once; no reference to a piece is kept here."""
        if len(places) == 1:
            yield self.forward(token_ids, batch, places[0])
            return
        if self.lean is not None:
            hidden = self._hidden(self.lean, token_ids, batch)
            for wanted in places:
                yield self._by_head(self.lean, hidden, wanted).float()
            return
        decoder, kept = _decoder(self.model), []
        hook = decoder.register_forward_hook(lambda _module, _given, output: kept.append(output))
        try:
            piece = [self.forward(token_ids, batch, places[0])]
        finally:
            hook.remove()
        yield piece.pop()
        for wanted in places[1:]:
            with _fixed_output(decoder, kept[0]):
                piece.append(self.forward(token_ids, batch, wanted))
            yield piece.pop()

    @torch.inference_mode()
    def logits(self, token_ids: torch.Tensor, batch: StepBatch, last: torch.Tensor | int) -> torch.Tensor:
        """The same in the model's dtype; `last` 0: of all tokens."""
        if self.lean is not None:
            return self._by_head(self.lean, self._hidden(self.lean, token_ids, batch), last)
        self.context.batch = batch
        is_alone = self.context.is_compiled and len(token_ids) == 1 and not self.compiles_one
        try:
            with compilation.run_eagerly() if is_alone else nullcontext():
                out = self.model(
                    input_ids=token_ids[None],
                    position_ids=batch.positions[None],
                    attention_mask=None,
                    use_cache=False,
                    logits_to_keep=last,
                )
        finally:
            self.context.batch = None
        logits: torch.Tensor = out.logits
        return logits[0]

    @torch.inference_mode()
    def _hidden(self, lean: LeanModel, token_ids: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        self.context.batch = batch
        try:
            return lean.hidden(token_ids, batch.positions)
        finally:
            self.context.batch = None

    @torch.inference_mode()
    def _by_head(self, lean: LeanModel, hidden: torch.Tensor, places: torch.Tensor | int) -> torch.Tensor:
        return lean.head(hidden if isinstance(places, int) else hidden[places])


def _decoder(model: Any) -> Any:
    """All layers, without the head."""
    found = model.get_decoder()
    return model.model if found is model else found  # Llama 4 has none under the name that get_decoder looks for


@contextmanager
def _fixed_output(module: Any, output: Any) -> Iterator[None]:
    """Within this context, a module returns an earlier output and computes nothing."""
    module.forward = lambda *_given, **_named: output
    try:
        yield
    finally:
        del module.forward


def build(config: PreTrainedConfig, dtype: torch.dtype) -> Any:
    """A model with random weights, from its configuration."""
    register()
    allow(config.model_type, NAME)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=NAME, dtype=dtype
    )
    adapt(model)
    return model


def load(folder: Path, dtype: torch.dtype, advance: Advance | None = None) -> Any:
    """A model with the weights of a checkpoint folder."""
    register()
    allow(stated_type(folder), NAME)
    with packed_readers(folder) as readers:
        if readers is None:
            model = load_checkpoint(folder, dtype, NAME, advance)
        else:
            model = load_packed(folder, readers, dtype, NAME, advance)
    model.quire_cache_scales = read_cache_scales(folder)
    adapt(model)
    return model
