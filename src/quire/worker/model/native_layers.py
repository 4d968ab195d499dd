"""Lean layers in C (`quire.native`): all layers of a decode step are one call, with one team of threads.

    every row has one new token     one call
    others                          one call between two attentions, which the backend computes

Weights must lie in tiles, keys and values in fp32. The same products serve any number of tokens, so what a row computes
does not depend on the others of a decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any

import numpy as np
import torch

from quire.native.library import Layer, Model, Native, Reading, Step, native
from quire.worker.backends.batch import KindBatch, StepBatch
from quire.worker.mixers.context import PLAIN, ForwardContext
from quire.worker.model.fused import FusedPart
from quire.worker.model.lean import LeanAttention, LeanLayer, LeanModel
from quire.worker.model.packed_cpu import OnPlanes
from quire.worker.model.tiles import Tiles, tokens_in_15_bits
from quire.worker.pages.arena import Cut

PHASES, ROTATED, JOINED, BEGIN = 10, 2, 3, 1
"""Of each layer in C, and where they are: phase 0 norms the embeddings, a layer's own begin behind it."""
PIECE = 256
"""Tokens that attention in C reads at a time."""
MOST_HEADS, MOST_CHUNKS = 16, 60_000
"""Heads that share keys; pieces of attention in one layer."""
LANES = 16
READING = np.dtype([(name, np.int64) for name, _ in Reading._fields_])

Places = tuple[int, Cut, Cut]
"""A kind, and where its keys and values lie."""


class NativeModel(LeanModel):
    """Its layers are C structures; the tensors that they point to are kept here."""

    def __init__(self, model: Any, decoder: Any, context: ForwardContext, library: Native) -> None:
        super().__init__(model, decoder, context)
        self.context, self.native = context, library
        self.kept: list[torch.Tensor] = []
        self.places: list[Places] = []
        found = [self._struct(own, layer) for own, layer in zip(decoder.layers, self.layers, strict=True)]
        self.structs = (Layer * len(found))(*found)
        first, mlp = self.layers[0], _tiles([decoder.layers[0].mlp.down_proj])
        assert mlp is not None
        self.hidden_size, self.inner = mlp.outputs, mlp.inputs
        self.heads, self.key_heads, self.width = first.heads, first.turned - first.heads, first.width
        self.struct = Model(
            self.structs, self._pointer(self.norm.weight), len(found), self.hidden_size, self.inner,
            self.heads, self.key_heads, self.width, self.norm.epsilon,
        )  # fmt: skip
        self.lines = [own.outputs for own in (found[0].queries_keys_values, found[0].gate_up)]

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(token_ids).contiguous()
        cosines, sines = (found[0].contiguous() for found in self.rotary(x, positions[None]))
        step, kept = self._step(x, cosines, sines)
        batch = self.context.running()
        readings = self._readings(batch)
        if readings is None:
            self._by_layer(step, kept)
        else:
            attending = self._attending(step, readings)
            self._run(step, 0, BEGIN + PHASES * len(self.layers))
            del attending
        return kept["found"]

    def _by_layer(self, step: Step, kept: dict[str, torch.Tensor]) -> None:
        """Attention is the backend's."""
        done, queries_keys_values = 0, kept["queries_keys_values"]
        turned = self.heads + self.key_heads
        heads = queries_keys_values.view(step.rows, -1, self.width)
        for number, layer in enumerate(self.layers):
            begin = BEGIN + PHASES * number
            self._run(step, done, begin + ROTATED)
            mixed = layer.attention(heads[:, : self.heads], heads[:, self.heads : turned], heads[:, turned:])
            kept["mixed"].copy_(mixed)
            done = begin + JOINED
        self._run(step, done, BEGIN + PHASES * len(self.layers))

    def _run(self, step: Step, begin: int, end: int) -> None:
        team = self.native.team(torch.get_num_threads())
        self.native.library.quire_layers(team, self.native.ops, byref(self.struct), byref(step), begin, end)

    def _step(
        self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> tuple[Step, dict[str, torch.Tensor]]:
        """Room for all results on the way; x is changed."""
        rows, (fused, both) = len(x), self.lines
        sizes = {"queries_keys_values": fused, "mixed": self.heads * self.width, "gate_up": both,
                 "found": self.hidden_size}  # fmt: skip
        kept = {name: x.new_empty(rows, size) for name, size in sizes.items()}
        tokens, codes = tokens_in_15_bits(rows, max(self.inner, self.hidden_size, sizes["mixed"]))
        pointers = {name: part.data_ptr() for name, part in kept.items()}
        step = Step(x=x.data_ptr(), cosines=cosines.data_ptr(), sines=sines.data_ptr(), rows=rows, tokens=tokens,
                    **pointers)  # fmt: skip
        kept.update(codes=codes, x=x, cosines=cosines, sines=sines)
        return step, kept

    def _attending(self, step: Step, readings: np.ndarray) -> Sequence[object]:
        """Room for pieces of rows; what is returned must live while the step runs."""
        pieces = -(-int(readings["count"].max()) // PIECE)
        heads = step.rows * pieces * self.heads
        memory = torch.empty(heads * (2 + self.width))
        begin = memory.data_ptr()
        step.greatest, step.sums, step.parts = begin, begin + 4 * heads, begin + 8 * heads
        step.readings, step.pieces = readings.ctypes.data, pieces
        return memory, readings

    def _readings(self, batch: StepBatch) -> np.ndarray | None:
        """(places, row) of what rows read, if each has one new token and C may compute their attention."""
        if batch.counts.max() > 1:
            return None
        rows = len(batch.counts)
        found = np.empty((len(self.places), rows), dtype=READING)
        for own, place in zip(found, self.places, strict=True):
            _fill(own, batch.kinds[place[0]], place)
        pieces = -(-int(found["count"].max()) // PIECE)
        return found if rows * pieces * self.key_heads <= MOST_CHUNKS else None

    def _struct(self, own: Any, layer: LeanLayer) -> Layer:
        attention, parts = layer.attention, own.self_attn
        assert isinstance(attention, LeanAttention)
        key, value = attention.parts
        place = key.kind, key.cut, value.cut
        if place not in self.places:
            self.places.append(place)
        return Layer(
            *(self._weight(linears) for linears in _products(own)),
            self._pointer(layer.norms[0].weight), self._pointer(layer.norms[1].weight),
            None if layer.head_norm is None else self._pointer(layer.head_norm.weight),
            key.rows.data_ptr(), value.rows.data_ptr(), key.cut.step_bytes, value.cut.step_bytes,
            layer.norms[0].epsilon, layer.norms[1].epsilon, layer.head_norm.epsilon if layer.head_norm else 0.0,
            float(parts.scaling), self.places.index(place), int(layer.has_rope),
        )  # fmt: skip

    def _weight(self, linears: Sequence[Any]) -> Any:
        tiles, bias = _tiles(linears), _owner(linears).bias
        assert tiles is not None
        if bias is not None:
            padded = torch.zeros(tiles.padded)
            padded[: tiles.outputs] = bias.detach()
            self.kept.append(padded)
            return tiles.weight(padded)
        return tiles.weight()

    def _pointer(self, tensor: torch.Tensor) -> int:
        self.kept.append(own := tensor.detach().contiguous())
        return own.data_ptr()


def native_model(model: Any, decoder: Any, context: ForwardContext) -> NativeModel | None:
    """None: the library is not there, or a layer is not what it computes."""
    library = native()
    if library is None or not all(_fits(layer, context) for layer in decoder.layers):
        return None
    sizes = {tuple((tiles.outputs, tiles.inputs) for tiles in map(_tiles, _products(layer)) if tiles)
             for layer in decoder.layers}  # fmt: skip
    return NativeModel(model, decoder, context, library) if len(sizes) == 1 else None


def _fits(layer: Any, context: ForwardContext) -> bool:
    own, found = layer.self_attn, [_tiles(linears) for linears in _products(layer)]
    parts = [context.arena.layers[own.layer_idx][name] for name in PLAIN]
    heads = own.q_proj.out_features // own.head_dim, own.k_proj.out_features // own.head_dim
    return (
        all(tiles is not None and tiles.is_plain and tiles.padded == tiles.outputs for tiles in found)
        and all(part.tensor.dtype is torch.float32 for part in parts)
        and own.head_dim % (2 * LANES) == 0
        and heads[0] % heads[1] == 0
        and heads[0] // heads[1] <= MOST_HEADS
        and own.layer_idx not in context.temperatures
    )


def _products(layer: Any) -> tuple[list[Any], ...]:
    own, mlp = layer.self_attn, layer.mlp
    return [own.q_proj, own.k_proj, own.v_proj], [own.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]


def _owner(linears: Sequence[Any]) -> Any:
    return linears[0].share if isinstance(linears[0], FusedPart) else linears[0]


def _tiles(linears: Sequence[Any]) -> Tiles | None:
    """Of one product."""
    if len(linears) > 1 and not isinstance(linears[0], FusedPart):
        return None
    owner = _owner(linears)
    return owner.planes if isinstance(owner, OnPlanes) and isinstance(owner.planes, Tiles) else None


def _fill(found: np.ndarray, kind: KindBatch, place: Places) -> None:
    """Addresses of what each row reads, as numbers; the batch keeps it alive."""
    _, key, value = place
    found["new_key"], found["new_value"] = kind.new[key].numpy(), kind.new[value].numpy()
    for reading in kind.readings:
        rows, count = reading.queries[:, 0].numpy(), reading.tokens[key].shape[1]
        line = np.arange(len(rows)) * count
        found["key_places"][rows] = reading.tokens[key].data_ptr() + 8 * line
        found["value_places"][rows] = reading.tokens[value].data_ptr() + 8 * line
        found["seen"][rows] = 0 if reading.mask is None else reading.mask.data_ptr() + line
        found["count"][rows] = count
