"""A model of transformers whose quantised weights stay packed.

    folder ──formats──▶ readers of packed parameters, by name
    transformers' model, without memory ──▶ modules for packed weights in place of linear layers, embeddings, experts
                                        ──▶ all other tensors, read by transformers
    readers ──▶ packed weights, renamed and merged as transformers does it ──▶ modules

transformers calls `PackedQuantizer` when the model has no memory yet. Where a parameter has no packed module, its
weight is dequantised: convolutions, and layers whose weight is read in another form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from quire.core.errors import ModelError
from quire.worker.model.packed_experts import can_hold, replace_parameter
from quire.worker.model.packed_linear import Packed, PackedEmbedding, PackedLinear
from quire.worker.weights.formats.stored import Readers
from quire.worker.weights.loading import read_model, require_all
from quire.worker.weights.merging import Source, sources_of
from quire.worker.weights.safetensors import checkpoint_files
from quire.worker.weights.write import Advance

METHOD = "quire"
EXPANDED = frozenset({"kv_b_proj"})
"""Linear layers of which attention reads the weight itself, at every step (`mixers/latent.py`)."""


@register_quantization_config(METHOD)
@dataclass
class PackedNames(QuantizationConfigMixin):
    """Passes the names of packed parameters through transformers."""

    quant_method: Any = METHOD
    names: list[str] = field(default_factory=list)


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Replaces modules before transformers gives parameters memory."""

    def _process_model_before_weight_loading(self, model: Any, **_others: Any) -> None:
        given: Any = self.quantization_config
        model.quire_placement = place(model, given.names)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where packed weights go."""

    sources: list[Source]
    modules: dict[str, list[Packed]]
    """By the parameter that they stand for: several, if it is tied; none, if the weight is dequantised."""
    expanded: dict[str, torch.Tensor]
    """Parameters that are dequantised, without memory."""


def load_packed(
    folder: Path, readers: Readers, dtype: torch.dtype, attention: str, advance: Advance | None = None
) -> Any:
    """Complete, or refused by name."""
    config = plain_config(folder)
    config.quantization_config = {"quant_method": METHOD, "names": list(readers)}
    model, missing = read_model(folder, dtype, attention, None, config)
    placement: Placement = model.__dict__.pop("quire_placement")
    require_all(folder, "has no weights for", sorted(missing))
    size, count = sum(file.stat().st_size for file in checkpoint_files(folder)), len(placement.sources)
    for done, source in enumerate(placement.sources, 1):
        _fill(folder, model, placement, source, readers)
        if advance:
            advance(size * done // count, size)
    model.hf_quantizer.remove_quantization_config(model)
    return model


def plain_config(folder: Path) -> Any:
    """The configuration without what it says about quantisation."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    for part in (config, config.get_text_config(decoder=True)):
        for name in ("quantization_config", "compression_config"):
            part.__dict__.pop(name, None)
    return config


def place(model: Any, names: list[str]) -> Placement:
    """Puts modules without a weight in the places of packed parameters. The model is on the meta device."""
    sources = sources_of(model, names)
    modules = {target: place_module(model, target) for source in sources for target in source.targets}
    for head, table in list(model.all_tied_weights_keys.items()):
        if modules.get(table) or modules.get(head):
            del model.all_tied_weights_keys[head]  # each has a weight of its own, or they share a packed one
        if modules.get(table) and head not in modules:
            modules[table] += place_module(model, head)
    expanded = {target: _taken(model, target) for target, holders in modules.items() if not holders}
    return Placement(sources, modules, expanded)


def can_pack(model: Any, name: str) -> bool:
    """Whether a packed module can hold a parameter."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    if can_hold(module, own):
        return True
    is_expanded = path.rpartition(".")[2] in EXPANDED
    return own == "weight" and not is_expanded and _module_for(module, torch.float32) is not None


def place_module(model: Any, name: str) -> list[Packed]:
    """What holds a parameter from now on; empty: it is dequantised."""
    path, _, own = name.rpartition(".")
    module, dtype = model.get_submodule(path), model.get_parameter(name).dtype
    if not can_pack(model, name):
        return []
    if can_hold(module, own):
        return [replace_parameter(module, own, dtype)]
    made = _module_for(module, dtype)
    assert made is not None
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, made)
    return [made]


def _taken(model: Any, name: str) -> torch.Tensor:
    """Takes a parameter out of the model, so that transformers does not take codes for its weight."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    parameter: torch.Tensor = module._parameters[own]
    module._parameters[own], module._is_hf_initialized = None, True
    return parameter


def _module_for(module: Any, dtype: torch.dtype) -> PackedLinear | PackedEmbedding | None:
    if type(module) is nn.Linear:
        return PackedLinear(module.out_features, module.in_features, dtype, module.bias)
    if type(module) is nn.Embedding:
        return PackedEmbedding(module.num_embeddings, module.embedding_dim, dtype)
    scale: Any = getattr(module, "scalar_embed_scale", None)
    if isinstance(module, nn.Embedding) and scale is not None:  # Gemma's
        return PackedEmbedding(module.num_embeddings, module.embedding_dim, dtype, scale)
    return None


def _fill(folder: Path, model: Any, placement: Placement, source: Source, readers: Readers) -> None:
    """Reads the weights of one source."""
    holders = [holder for target in source.targets for holder in placement.modules[target]]
    found = source.packed(model, readers) if holders else None
    if found is not None:
        for target, packed in found.items():
            holder, *others = placement.modules[target]
            _require_shape(folder, target, packed.shape, holder.shape)
            holder.hold(packed)
            for other in others:
                other.share(holder)
        return
    for target, weight in source.dense(model, readers).items():
        if placement.modules[target]:
            raise ModelError(f"{folder} packs {target} in several ways, which cannot be merged into one weight")
        parameter, (path, _, own) = placement.expanded[target], target.rpartition(".")
        _require_shape(folder, target, tuple(weight.shape), tuple(parameter.shape))
        model.get_submodule(path)._parameters[own] = nn.Parameter(weight.to(parameter.dtype), requires_grad=False)


def _require_shape(folder: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelError(f"{folder} has weights of another shape for {name}: {found}, expected is {expected}")
