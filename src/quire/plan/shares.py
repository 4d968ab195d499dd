"""How a model is divided: layers to pipeline stages, heads to tensor-parallel ranks, memories of equal rules to a kind.

model ── stage 0 ── kind "window-1024" ── slots: (layer 0, its K and V), (layer 1, …)
      │          └─ kind "full"        ── slots: (layer 5, …)
      └─ stage 1 ── …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.errors import PlanError
from quire.core.memory import Memory, Part
from quire.core.units import ceil_div
from quire.kinds import Kind, kind_of
from quire.models.shape import Layer, ModelShape


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as one rank stores it."""

    name: str
    heads: int
    row_bytes: int
    dtype: DType
    model_heads: int
    """Heads of the whole model; smaller than heads × ranks where ranks keep copies or an idle row."""
    replicated: bool

    @property
    def bytes(self) -> int:
        return self.heads * self.row_bytes

    @property
    def unique_bytes(self) -> int:
        """Over all ranks, each byte once."""
        return self.model_heads * self.row_bytes


@dataclass(frozen=True, slots=True)
class Slot:
    """One memory of one layer, as one rank of its stage stores it."""

    layer: int
    purpose: str
    parts: tuple[StoredPart, ...]

    @property
    def unit_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def unique_unit_bytes(self) -> int:
        return sum(part.unique_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class KindShare:
    """All slots of one kind on one stage."""

    kind: Kind
    slots: tuple[Slot, ...]

    @property
    def unit_bytes(self) -> int:
        return sum(slot.unit_bytes for slot in self.slots)

    @property
    def is_narrow(self) -> bool:
        """Whether all parts are replicated, not divided by heads: latents and compressors."""
        return all(part.replicated for slot in self.slots for part in slot.parts)


@dataclass(frozen=True, slots=True)
class StageShare:
    """One pipeline stage: its layers [first, first + len) of the model, drafts last."""

    first_layer: int
    layers: tuple[Layer, ...]
    kinds: tuple[KindShare, ...]

    @property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        sources = enumerate((layer.shares_with for layer in self.layers), self.first_layer)
        return tuple((index, source) for index, source in sources if source is not None)


def heads_on_rank(part: Part, ranks: int) -> int:
    """The most heads any rank keeps. If there are fewer heads than ranks, ranks ÷ heads ranks keep a copy of each."""
    if part.replicated or ranks == 1:
        return part.heads
    if part.heads >= ranks:
        return ceil_div(part.heads, ranks)
    if ranks % part.heads:
        raise PlanError(
            f"{part.heads} heads of {part.name} cannot be split over {ranks} ranks: choose --tensor-parallel "
            f"of at most {part.heads} or a multiple of {part.heads}"
        )
    return 1


def check_query_heads(model: ModelShape, ranks: int) -> None:
    if model.query_heads and model.query_heads < ranks:
        raise PlanError(
            f"{model.query_heads} query heads cannot be split over {ranks} ranks: choose --tensor-parallel of at most "
            f"{model.query_heads}"
        )


def uneven_heads(model: ModelShape, ranks: int) -> int | None:
    """A number of attention heads that ranks cannot divide evenly, if there is one."""
    parts = (part for layer in model.layers for memory in layer.memories for part in memory.parts)
    return next((p.heads for p in parts if p.name == "key" and not p.replicated and p.heads % ranks), None)


def store(memory: Memory, layer: int, kv_dtype: DType, state_dtype: DType | None, ranks: int) -> Slot:
    parts = tuple(
        StoredPart(
            name=part.name,
            heads=heads_on_rank(part, ranks),
            row_bytes=part.row_bytes(kv_dtype, state_dtype),
            dtype=part.stored_dtype(kv_dtype, state_dtype),
            model_heads=part.heads,
            replicated=part.replicated,
        )
        for part in memory.parts
    )
    return Slot(layer, memory.purpose, parts)


def gather_kinds(
    layers: Sequence[Layer], first_layer: int, kv_dtype: DType, state_dtype: DType | None, ranks: int
) -> tuple[KindShare, ...]:
    """Memories with equal rules go to one kind, whatever their sizes; kinds that grow come first."""
    slots: dict[Kind, list[Slot]] = {}
    for index, layer in enumerate(layers, first_layer):
        for memory in layer.memories:
            slots.setdefault(kind_of(memory), []).append(store(memory, index, kv_dtype, state_dtype, ranks))
    ordered = sorted(slots, key=lambda kind: (not kind.grows, kind.name))
    return tuple(KindShare(kind, tuple(slots[kind])) for kind in ordered)


def layers_per_stage(layers: int, stages: int, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    if asked is not None:
        if len(asked) != stages or sum(asked) != layers or min(asked) < 0:
            raise PlanError(
                f"--stage-layers {','.join(map(str, asked))} must be {stages} numbers that add up to {layers} layers"
            )
        return asked
    if stages > layers:
        raise PlanError(f"{layers} layers cannot fill {stages} stages: choose --pipeline-parallel of at most {layers}")
    short, longer = divmod(layers, stages)
    return tuple(short + (stage < longer) for stage in range(stages))


def divide(
    model: ModelShape,
    *,
    stages: int,
    stage_layers: tuple[int, ...] | None,
    ranks: int,
    kv_dtype: DType,
    state_dtype: DType | None,
    with_drafts: bool,
) -> tuple[StageShare, ...]:
    """The whole model, divided once for all ranks; drafts run on the last stage."""
    check_query_heads(model, ranks)
    shares, first = [], 0
    for stage, size in enumerate(layers_per_stage(len(model.layers), stages, stage_layers)):
        layers = model.layers[first : first + size]
        if with_drafts and stage == stages - 1:
            layers += model.draft_layers
        _check_sharing(layers, first, len(model.layers) + with_drafts * len(model.draft_layers))
        shares.append(StageShare(first, layers, gather_kinds(layers, first, kv_dtype, state_dtype, ranks)))
        first += size
    return tuple(shares)


def _check_sharing(layers: Sequence[Layer], first: int, total: int) -> None:
    for index, layer in enumerate(layers, first):
        source = layer.shares_with
        if source is None:
            continue
        if not 0 <= source < total:
            raise PlanError(
                f"layer {index} shares the memory of layer {source}, but the model has layers 0 to {total - 1}"
            )
        if not first <= source < first + len(layers):
            raise PlanError(
                f"layer {index} shares the memory of layer {source}, which lies on another stage: choose "
                f"--stage-layers that keeps layers {source} to {index} together"
            )
        if not layers[source - first].memories:
            raise PlanError(f"layer {index} shares the memory of layer {source}, which keeps none")
