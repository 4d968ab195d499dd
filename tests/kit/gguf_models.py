"""Models of transformers as GGUF files: tensors, metadata and quirks of each architecture, as llama.cpp writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM

Q = GGMLQuantizationType
Bytes = npt.NDArray[np.uint8]
SMALL = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
SPARSE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
HALVES = {2: (80, 82), 3: (108,), 4: (0, 2), 5: (0, 2), 6: (208,)}
"""Of K-quants: where a block has 16-bit floats."""


@dataclass(frozen=True)
class Written:
    """How an architecture is written."""

    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Metadata beyond what all have."""
    is_rotated_in_pairs: bool = False
    norm_offset: float = 0.0
    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Sequence[float]] = field(default_factory=dict)


_LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
_YARN = {"rope_type": "yarn", "rope_theta": 15e4, "factor": 4.0, "original_max_position_embeddings": 32}
_SHORT, _LONG = [1.0 + i / 8 for i in range(8)], [2.0 + i / 4 for i in range(8)]
ARCHITECTURES = {
    "llama": Written("llama", "llama", is_rotated_in_pairs=True),
    "llama, biases, tied": Written(
        "llama", "llama", {"attention_bias": True, "tie_word_embeddings": True}, is_rotated_in_pairs=True
    ),
    "llama, linear": Written(
        "llama", "llama", {"rope_parameters": _LINEAR | {"rope_theta": 1e4}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, is_rotated_in_pairs=True,
    ),
    "llama, yarn": Written(
        "llama", "llama", {"rope_parameters": _YARN | {"rope_theta": 1e4, "beta_fast": 16.0, "beta_slow": 2.0}},
        {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
        },
        is_rotated_in_pairs=True,
    ),
    "llama 3": Written(
        "llama", "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            }
        },
        is_rotated_in_pairs=True,
    ),
    "mistral": Written(
        "llama", "mistral", {"sliding_window": 16}, {"attention.sliding_window": 16}, is_rotated_in_pairs=True
    ),
    "mixtral": Written("llama", "mixtral", SPARSE, {}, is_rotated_in_pairs=True),
    "qwen2": Written("qwen2", "qwen2"),
    "qwen2moe": Written(
        "qwen2moe", "qwen2_moe", SPARSE | {"shared_expert_intermediate_size": 96, "norm_topk_prob": False}
    ),
    "qwen3": Written("qwen3", "qwen3", {"head_dim": 32}),
    "qwen3moe": Written("qwen3moe", "qwen3_moe", SPARSE | {"norm_topk_prob": True, "head_dim": 16}),
    "gemma2": Written(
        "gemma2", "gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16},
        {"attention.sliding_window": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        norm_offset=1.0, names=SANDWICH,
    ),
    "gemma3": Written(
        "gemma3", "gemma3_text",
        {
            "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": _LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {
            "attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        norm_offset=1.0, names=SANDWICH,
    ),
    "phi3": Written("phi3", "phi3", {"sliding_window": None}, {"attention.sliding_window": 0}),
    "phi3, partly rotated": Written(
        "phi3", "phi3",
        {
            "sliding_window": None, "partial_rotary_factor": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
        {"attention.sliding_window": 0, "rope.dimension_count": 8},
    ),
    "phi3, long": Written(
        "phi3", "phi3",
        {
            "sliding_window": 48, "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": _SHORT, "long_factor": _LONG,
                "original_max_position_embeddings": 32, "partial_rotary_factor": 1.0,
            },
        },
        {
            "attention.sliding_window": 48, "rope.scaling.original_context_length": 32, "rope.dimension_count": 16,
            "rope.scaling.type": "longrope", "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(32)),
        },
        tensors={"rope_factors_long.weight": _LONG, "rope_factors_short.weight": _SHORT},
    ),
    "granite": Written(
        "granite", "granite",
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
        {"attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0},
        is_rotated_in_pairs=True,
    ),
    "smollm3": Written("smollm3", "smollm3", {"num_hidden_layers": 4}, is_rotated_in_pairs=True),
    "gpt-oss": Written(
        "gpt-oss", "gpt_oss",
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, "head_dim": 16,
            "rope_parameters": _YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
        {
            "attention.sliding_window": 16, "rope.freq_base": 15e4, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
        },
        names={"post_attention_layernorm": "post_attention_norm"},
    ),
}  # fmt: skip


def random_model(written: Written, **sizes: Any) -> Any:
    config = AutoConfig.for_model(written.model_type, **(SMALL | written.config | sizes))
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.15))
    return model


def write_parts(path: Path, written: Written, sorts: Sequence[Q], tensors: int) -> list[Path]:
    """A model in files of so many tensors."""
    write_model(path, written, random_model(written), sorts, tensors)
    return sorted(path.parent.glob(f"{path.stem}-*.gguf"))


def write_model(
    path: Path, written: Written, model: Any, sorts: Sequence[Q] = (Q.F32,), tensors_of_a_part: int = 0
) -> None:
    """Matrices are stored as one type of `sorts` after another; the model's own become what these mean."""
    writer = GGUFWriter(path, written.name, split_max_tensors=tensors_of_a_part)
    _write_metadata(writer, written, model.config)
    tied = model.config.tie_word_embeddings
    counter = 0
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        is_matrix = parameter.dim() > 1 and not re.search(r"norm|mlp\.gate\.|router|shared_expert_gate|_bias", name)
        sort = sorts[counter % len(sorts)] if is_matrix else Q.F32
        counter += is_matrix
        _write_parameter(writer, written, model, name, sort)
    for name, values in (written.tensors | _divisors(model)).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _divisors(model: Any) -> dict[str, Any]:
    """Of Llama 3.1's frequencies."""
    rope = model.config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return {}
    stretched = model.model.rotary_emb.inv_freq.double()
    plain = rope["rope_theta"] ** -(torch.arange(len(stretched), dtype=torch.float64) / len(stretched))
    return {"rope_freqs.weight": (plain / stretched).numpy()}


def _write_parameter(writer: GGUFWriter, written: Written, model: Any, name: str, sort: Q) -> None:
    parameter = model.get_parameter(name)
    is_transposed = written.name == "gpt-oss" and "experts" in name and not name.endswith("_bias")
    values = parameter.detach().mT if is_transposed else parameter.detach()
    if parameter.dim() == 1 or sort is Q.F32:
        data, stored = values.numpy(), Q.F32
    else:
        data, stored = blocks_of(values.numpy(), sort), sort
        meant = torch.from_numpy(meaning(data, sort)).view(values.shape)
        parameter.data.copy_(meant.mT if is_transposed else meant)
    for tensor, rows in _tensors(written, model.config, name, data):
        writer.add_tensor(tensor, np.ascontiguousarray(rows), raw_dtype=stored)


def _tensors(written: Written, config: Any, name: str, data: Any) -> list[tuple[str, Any]]:
    """What a parameter becomes: rows of bytes, or of 32-bit floats."""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
    if name == "model.norm.weight":
        return [("output_norm.weight", data + np.float32(written.norm_offset))]
    if name in whole:
        return [(whole[name], data)]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+?)(?:\.(weight|bias))?", name)
    assert match is not None
    layer, module, end = match.groups()
    if ".experts." in module:
        return _experts(written, f"blk.{layer}", module.rpartition(".")[2], data)
    ours = (LAYER | written.names)[module]
    if module.endswith("norm") and written.norm_offset:
        data = data + np.float32(written.norm_offset)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(ours)
    if written.is_rotated_in_pairs and heads:
        data = data[[row for head in range(heads) for row in pairs(len(data) // heads, head)]]
    if ours == "ffn_gate_inp_shexp":
        data = data[0]
    return [(f"blk.{layer}.{ours}" if end is None else f"blk.{layer}.{ours}.{end}", data)]


def pairs(width: int, head: int) -> list[int]:
    """Rows of one head in the file's order: of each pair that rotates together, one from each half."""
    return [head * width + half * (width // 2) + place for place in range(width // 2) for half in (0, 1)]


def _experts(written: Written, layer: str, module: str, data: Any) -> list[tuple[str, Any]]:
    end = "bias" if module.endswith("_bias") else "weight"
    if module.startswith("down_proj"):
        return [(f"{layer}.ffn_down_exps.{end}", data)]
    middle = data.shape[1] // 2
    gate, up = (data[:, 0::2], data[:, 1::2]) if written.name == "gpt-oss" else (data[:, :middle], data[:, middle:])
    return [(f"{layer}.ffn_gate_exps.{end}", gate), (f"{layer}.ffn_up_exps.{end}", up)]


def blocks_of(values: Any, sort: Q) -> Bytes:
    """Quantised rows; of K-quants, which only llama.cpp itself can make of given numbers, random ones."""
    if not sort.name.endswith("_K"):
        return np.asarray(quantize(values, sort))
    numbers, size = GGML_QUANT_SIZES[sort]
    random = np.random.default_rng(values.size)
    rows = math.prod(values.shape[:-1])
    blocks = random.integers(0, 256, (rows * values.shape[-1] // numbers, size), dtype=np.uint8)
    for place in HALVES[int(sort.name[1])]:
        scale = random.normal(size=(len(blocks), 1)) * 2e-4
        blocks[:, place : place + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def meaning(data: Bytes, sort: Q) -> npt.NDArray[np.float32]:
    if sort is Q.F16:
        return data.view(np.float16).astype(np.float32)
    return np.asarray(dequantize(data, sort), dtype=np.float32)


def _write_metadata(writer: GGUFWriter, written: Written, config: Any) -> None:
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "expert_count": getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "rope.freq_base": config.rope_parameters.get("rope_theta"),
        **written.fields,
    }
    for name, value in numbers.items():
        key = f"{written.name}.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    _write_tokens(writer, config.vocab_size)


def _write_tokens(writer: GGUFWriter, count: int) -> None:
    """Byte-level tokens without merges."""
    marks = ["<pad>", "<end>", "<begin>"]
    letters = [chr(33 + place) for place in range(count - len(marks))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*marks, *letters])
    writer.add_token_types([3] * len(marks) + [1] * len(letters))
    writer.add_token_merges([])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
