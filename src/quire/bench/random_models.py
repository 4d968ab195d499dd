"""Models with random weights, from shapes of the catalogue: no checkpoint is needed."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.core.errors import InputError
from quire.fetch.find import configuration, find_source, is_of_hub
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.worker.model.model import build

NOT_ITS_SHAPE = ("dtype", "quantization_config", "rope_scaling", "original_max_position_embeddings")
"""Of a catalogue's entry. Rotary factors are not in it, and any will do for random weights."""
LAYER_BY_LAYER = ("layer_types", "hybrid_override_pattern")
EXPERT_WEIGHTS = (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")
"""In names of parameters."""


def config_of(name: str, layers: int | None = None) -> Any:
    """As transformers has it; `layers`: the first so many of them alone."""
    fields: dict[str, Any] = configuration(find_source(name))[1] if is_of_hub(name) else catalogue_entry(name).config
    fields = dict(fields)
    for field in NOT_ITS_SHAPE:
        fields.pop(field, None)
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


def shape_of(config: Any, dtype: torch.dtype = torch.bfloat16) -> ModelShape:
    fields = json.loads(config.to_json_string())
    fields["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    return read_config({**fields, "dtype": str(dtype).removeprefix("torch.")}, config.model_type)


def model_of(config: Any, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.device(device):
        return build(config, dtype).eval()


def weights_read(model: Any, tokens: int) -> float:
    """Bytes that a step of so many tokens reads: rows of the embedding alone, unless it is the output's table too, and
    of experts those that some token is likely to choose."""
    config, total = model.config, 0.0
    touched = 1 - (1 - shape_of(config).experts.share) ** tokens
    moved = [(name, part) for name, part in model.named_buffers() if name.endswith(".panels")]
    has_own_head = not config.tie_word_embeddings or hasattr(model.get_output_embeddings(), "panels")
    for name, part in (*model.named_parameters(), *moved):
        if "embed_tokens" in name and has_own_head:
            continue
        is_expert = any(known in name for known in EXPERT_WEIGHTS)
        total += part.numel() * part.element_size() * (touched if is_expert else 1.0)
    return total
