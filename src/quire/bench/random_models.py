"""Models with random weights, from shapes of the catalogue: no checkpoint is needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.bench.random_packed import MXFP4, pack_at_random
from quire.core.errors import InputError
from quire.fetch.find import configuration, find_source, is_of_hub
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.worker.model.model import build

NOT_ITS_SHAPE = ("dtype", "quantization_config", "rope_scaling", "original_max_position_embeddings")
"""Of a catalogue's entry. Rotary factors are not in it, and any will do for random weights. Of quantised models, those
in MXFP4 alone stay so: they exist in nothing else."""
LAYER_BY_LAYER = ("layer_types", "hybrid_override_pattern")
EXPERT_WEIGHTS = (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")
"""In names of parameters."""


def config_of(name: str, layers: int | None = None) -> Any:
    """As transformers has it; `layers`: the first so many of them alone."""
    fields: dict[str, Any] = configuration(find_source(name))[1] if is_of_hub(name) else catalogue_entry(name).config
    is_packed = (fields.get("quantization_config") or {}).get("quant_method") == MXFP4
    fields = {field: value for field, value in fields.items() if field not in NOT_ITS_SHAPE}
    if is_packed:
        fields["quantization_config"] = {"quant_method": MXFP4}
    if layers is not None:
        most = fields.get("num_hidden_layers", 0)
        if layers > most:
            raise InputError(f"--layers {layers} are more than {name} has: give at most {most}")
        fields["num_hidden_layers"] = layers
        fields |= {field: fields[field][:layers] for field in LAYER_BY_LAYER if field in fields}
    if fields["model_type"] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise InputError(f"{name}: transformers has no code for models of type {fields['model_type']}: choose another")
    try:
        return AutoConfig.for_model(**_spelled(fields if fields["model_type"] != "dbrx" else _in_sections(fields)))
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{name}: transformers has no such configuration ({error}): choose another") from None


def _spelled(fields: dict[str, Any]) -> dict[str, Any]:
    """Some configurations say otherwise which layers attend, and refuse to be told."""
    types = fields.get("layer_types")
    if types is None or fields["model_type"] not in ("bamba", "jamba"):
        return fields
    rest = {name: value for name, value in fields.items() if name != "layer_types"}
    attending = [layer for layer, kind in enumerate(types) if kind in ("attention", "full_attention")]
    return rest | ({"attn_layer_indices": attending} if fields["model_type"] == "bamba" else {})


def _in_sections(fields: dict[str, Any]) -> dict[str, Any]:
    """DBRX has sections for attention and experts."""
    names = {"ffn_hidden_size": "intermediate_size", "moe_num_experts": "moe_num_experts"}
    names |= {"hidden_size": "hidden_size", "moe_top_k": "num_experts_per_tok"}
    experts = {name: fields[own] for name, own in names.items()}
    return {**fields, "attn_config": {"kv_n_heads": fields["num_key_value_heads"]}, "ffn_config": experts}


def shape_of(config: Any, dtype: torch.dtype = torch.bfloat16, held: WeightFormat | None = None) -> ModelShape:
    """`held`: as what, and where, weights are held."""
    fields = json.loads(config.to_json_string())
    fields["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    return read_config({**fields, "dtype": str(dtype).removeprefix("torch.")}, config.model_type, (), held)


def model_of(config: Any, device: torch.device, dtype: torch.dtype = torch.bfloat16, packed: str | None = None) -> Any:
    """`packed`: as what matrices are held (`--weights`)."""
    packed = packed or (MXFP4 if getattr(config, "quantization_config", None) else None)
    with torch.device("meta" if packed else device):
        model = build(config, dtype).eval()
    return pack_at_random(model, packed, device) if packed else model


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Of a model, before its weights are laid out for a device."""

    others: int
    experts: int
    share: float
    """Of the experts, what a token chooses."""

    def read(self, tokens: int) -> float:
        """By a step of so many tokens: of experts, those that some token is likely to choose."""
        return self.others + self.experts * (1 - (1 - self.share) ** tokens)


def weight_bytes(model: Any) -> WeightBytes:
    """Rows of the embedding alone are read, and left out, unless it is the output's table too. Packed weights are
    buffers."""
    others = experts = 0
    for name, part in (*model.named_parameters(), *model.named_buffers()):
        if "embed_tokens" in name and not model.config.tie_word_embeddings:
            continue
        if any(known in name for known in EXPERT_WEIGHTS):
            experts += part.nbytes
        else:
            others += part.nbytes
    return WeightBytes(others, experts, shape_of(model.config).experts.share)
