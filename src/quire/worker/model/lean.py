"""Models of llama's sort on a CPU, without transformers' modelling code.

    x ─ norm ─▶ queries, keys, values ─ rotate ─▶ attention ─▶ output ─▶ + x
    x ─ norm ─▶ gate, up ─ silu(gate) · up ─▶ down ─▶ + x

With few tokens and weights of few bits, a step costs as much in calls of torch as in products. What a layer needs is
looked up once (`LeanLayer`), its products are the fused ones, and what remains are about 25 calls a layer. Only classes
that are named here are replaced, and only if their own code computes the same logits when the model is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import KindBatch
from quire.worker.backends.choice import Reference
from quire.worker.mixers.context import PLAIN, ForwardContext
from quire.worker.model.fused import FusedPart
from quire.worker.model.packed_cpu import OnPlanes, Product
from quire.worker.pages.arena import PartView
from quire.worker.pages.quantised import is_quantised

_LOG = logging.getLogger(__name__)

FAMILIES = ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "SmolLM3")
LAYERS = frozenset(f"{family}DecoderLayer" for family in FAMILIES)
EXACT, ROUNDED = 1e-4, 5e-2
"""How far logits may be from transformers', relative to them: where products are in fp32, and where they are in bf16 or
keys and values in 8 bits."""
Rotation = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    weight: torch.Tensor
    epsilon: float
    shape: tuple[int, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rms_norm(x, self.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True, eq=False)
class LeanAttention:
    """Writes and reads one layer's pages. Where each row has one query and all are read together, keys and values are
    gathered and multiplied here, with the heads that share keys as queries of one head; else the backend does it."""

    context: ForwardContext
    number: int
    parts: tuple[PartView, PartView]
    scores: Scores

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """(token, head, width) in, (token, head × width) out."""
        kind = self.context.batch.kinds[self.parts[0].kind]  # type: ignore[union-attr]
        if len(kind.readings) != 1 or kind.readings[0].queries.shape[1] != 1:
            return self.context.attend_now(self.number, queries, keys, values, self.scores).flatten(1)
        return self._decode(kind, queries, (keys, values))

    def _decode(self, kind: KindBatch, queries: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        (reading,) = kind.readings
        tokens, heads, width = queries.shape
        found = []
        for part, values in zip(self.parts, new, strict=True):
            part.rows.index_copy_(0, kind.new[part.cut], values.flatten(1).to(part.rows.dtype))
            places = reading.tokens[part.cut]
            rows = part.rows.index_select(0, places.view(-1)).to(queries.dtype)
            found.append(rows.view(tokens, places.shape[1], -1, width).transpose(1, 2))
        key, value = found
        mask = None if reading.mask is None else reading.mask[:, None]
        grouped = queries.reshape(tokens, key.shape[1], -1, width)
        mixed = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=self.scores.scale)
        return mixed.reshape(tokens, heads * width)


@dataclass(frozen=True, slots=True, eq=False)
class LeanLayer:
    norms: tuple[Norm, Norm]
    heads: int
    """Of queries."""
    turned: int
    """Of queries and keys, which are rotated."""
    width: int
    queries_keys_values: Product
    attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    output: Product
    gate_up: Product
    down: Product
    has_rope: bool = True
    head_norm: Norm | None = None
    """Of queries and keys, with a weight for each head."""

    def add_to(self, x: torch.Tensor, rotation: Rotation) -> None:
        found = self.queries_keys_values(self.norms[0](x)).view(x.shape[0], -1, self.width).float()
        turned = self._rotated(found[:, : self.turned], rotation)
        mixed = self.attention(turned[:, : self.heads], turned[:, self.heads :], found[:, self.turned :])
        x += self.output(mixed.contiguous())
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=1)
        x += self.down(silu(gate).mul_(up))

    def _rotated(self, heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        if self.head_norm is not None:
            heads = torch.rms_norm(heads, (self.width,), None, self.head_norm.epsilon) * self.head_norm.weight
        if not self.has_rope:
            return heads
        cosines, sines = rotation
        return torch.addcmul(heads * cosines, heads.roll(self.width // 2, -1), sines)


class LeanModel:
    """A model with its head, and what its layers need, looked up."""

    def __init__(self, model: Any, decoder: Any, context: ForwardContext) -> None:
        self.embed, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, _norm(decoder.norm)
        self.layers = [_layer(layer, context) for layer in decoder.layers]
        self.head: Product = model.lm_head
        self.name, parts = (
            type(model).__name__,
            [part for own in context.arena.layers.values() for part in own.values()],
        )
        self.is_rounded = any(isinstance(module, OnPlanes) for module in model.modules())
        self.is_rounded |= any(map(is_quantised, parts))

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(token, hidden), before the head. The running step is the context's."""
        x = self.embed(token_ids)
        rotation = self._rotation(x, positions)
        for layer in self.layers:
            layer.add_to(x, rotation)
        return self.norm(x)

    def is_near(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether these logits are transformers'; reports it if not."""
        off = float((found - expected).norm() / expected.norm())
        most = ROUNDED if self.is_rounded else EXACT
        if not off <= most:
            _LOG.warning(
                "%s runs transformers' own layers, because lean ones are off by %.1e where %.0e is allowed",
                self.name, off, most,
            )  # fmt: skip
        return off <= most

    def _rotation(self, x: torch.Tensor, positions: torch.Tensor) -> Rotation:
        """(token, 1, width): rotating a half is rolling by it, with the first half's sine negated."""
        cosines, sines = (found[0, :, None] for found in self.rotary(x, positions[None]))
        half = sines.shape[-1] // 2
        return cosines, torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)


def refusal(decoder: Any, context: ForwardContext) -> str:
    """Why a decoder's layers are not replaced; empty if they can be."""
    layers = list(getattr(decoder, "layers", ()))
    others = sorted({type(layer).__name__ for layer in layers} - LAYERS)
    if others or not layers:
        return f"layers of {', '.join(others) or 'no class'} are not known"
    if not all(_is_silu(layer.mlp.act_fn) for layer in layers):
        return "another activation than silu"
    sorts = {(parameter.dtype, parameter.device.type) for parameter in decoder.parameters()}
    if sorts != {(torch.float32, "cpu")} or not all(isinstance(backend, Reference) for backend in context.backends):
        return "not in fp32 on a CPU"
    if decoder.rotary_emb.inv_freq.numel() * 2 != layers[0].self_attn.head_dim:
        return "only a part of each head is rotated"
    return ""


def _is_silu(activation: Any) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def _layer(layer: Any, context: ForwardContext) -> LeanLayer:
    own, mlp = layer.self_attn, layer.mlp
    width, outputs = own.head_dim, [part.out_features for part in (own.q_proj, own.k_proj)]
    heads, turned = outputs[0] // width, sum(outputs) // width
    return LeanLayer(
        (_norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)),
        heads, turned, width,
        _product([own.q_proj, own.k_proj, own.v_proj]),
        _attention(own, context),
        _product([own.o_proj]), _product([mlp.gate_proj, mlp.up_proj]), _product([mlp.down_proj]),
        bool(getattr(own, "use_rope", True)),
        _head_norm(own.q_norm, own.k_norm, heads, turned) if hasattr(own, "q_norm") else None,
    )  # fmt: skip


def _attention(own: Any, context: ForwardContext) -> Callable[..., torch.Tensor]:
    """By the backend alone, where keys and values are in 8 bits."""
    parts, scores = context.arena.layers[own.layer_idx], Scores(own.scaling)
    key, value = (parts[name] for name in PLAIN)
    if is_quantised(key):
        return lambda query, *new: context.attend_now(own.layer_idx, query, *new, scores).flatten(1)  # type: ignore[call-arg]
    return LeanAttention(context, own.layer_idx, (key, value), scores)


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon, tuple(module.weight.shape))


def _head_norm(queries: Any, keys: Any, heads: int, turned: int) -> Norm:
    both = torch.cat([queries.weight.expand(heads, -1), keys.weight.expand(turned - heads, -1)]).detach()
    return Norm(both, queries.variance_epsilon, tuple(both.shape))


def _product(linears: Sequence[Any]) -> Product:
    """One product, if the layers were fused."""
    first = linears[0]
    if isinstance(first, FusedPart):
        return first.share.prepared() if isinstance(first.share, OnPlanes) else first.share.multiply
    if len(linears) == 1:
        return first.prepared() if isinstance(first, OnPlanes) else first.forward
    parts = [_product([linear]) for linear in linears]
    return lambda tokens: torch.cat([part(tokens).float() for part in parts], dim=-1)
