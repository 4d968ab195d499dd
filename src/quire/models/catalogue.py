"""Models known by name. The facts are in `catalogue.txt`; here they are spelled out as configurations."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quire.core.errors import ModelError

_NUMBERS = {
    "L": "num_hidden_layers", "d": "hidden_size", "ff": "intermediate_size", "ffd": "intermediate_size_mlp",
    "q": "num_attention_heads", "kv": "num_key_value_heads", "hd": "head_dim", "vocab": "vocab_size",
    "len": "max_position_embeddings", "win": "sliding_window", "chunk": "attention_chunk_size",
    "moe": "moe_intermediate_size", "sff": "shared_expert_intermediate_size", "sw": "shared_intermediate_size",
    "shared": "n_shared_experts", "top": "num_experts_per_tok", "dense": "first_k_dense_replace",
    "step": "interleave_moe_layer_step", "mtp": "num_nextn_predict_layers", "rank": "kv_lora_rank",
    "qrank": "q_lora_rank", "nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim", "vd": "v_head_dim",
    "ix": "index_head_dim", "ixh": "index_n_heads", "ixt": "index_topk", "og": "o_groups",
    "or": "o_lora_rank", "hc": "hc_mult", "ghd": "global_head_dim",
    "gkv": "num_global_key_value_heads", "kvs": "num_kv_shared_layers", "ple": "hidden_size_per_layer_input",
    "plv": "vocab_size_per_layer_input", "alt": "altup_num_inputs", "lau": "laurel_rank",
    "dk": "linear_num_key_heads", "dv": "linear_num_value_heads", "dkd": "linear_key_head_dim",
    "dvd": "linear_value_head_dim", "dc": "linear_conv_kernel_dim", "lh": "linear_num_heads", "lhd": "linear_head_dim",
    "lc": "linear_conv_kernel_dim", "mh": "mamba_n_heads", "md": "mamba_d_head", "mg": "mamba_n_groups",
    "ms": "mamba_d_state", "mk": "mamba_d_conv", "mw": "mamba_d_ssm", "mr": "mamba_dt_rank",
    "nh": "mamba_num_heads", "nd": "mamba_head_dim", "ng": "n_groups", "ns": "ssm_state_size", "ck": "conv_kernel",
    "xs": "moe_shared_expert_intermediate_size", "xl": "moe_latent_size", "xp": "expert_layer_period",
    "xo": "expert_layer_offset", "h": "num_heads", "g": "n_groups", "s": "state_size", "conv": "conv_L_cache",
    "gr": "gate_low_rank_dim", "nkv": "num_kv_heads", "zero": "zero_expert_num", "wsize": "window_size",
}  # fmt: skip
_FLAGS = {
    "tie": "tie_word_embeddings", "keqv": "attention_k_eq_v", "bias": "attention_bias", "qkn": "use_qk_norm",
    "newer": "new_decoder_architecture",
}  # fmt: skip
_TEXTS = {"plan": "hybrid_override_pattern", "dtype": "dtype", "xdtype": "expert_dtype"}
_EXPERTS = {
    "deepseek_v2": "n_routed_experts", "deepseek_v3": "n_routed_experts", "deepseek_v32": "n_routed_experts",
    "deepseek_v4": "n_routed_experts", "kimi_k2": "n_routed_experts", "glm4_moe": "n_routed_experts",
    "glm_moe_dsa": "n_routed_experts", "nemotron_h": "n_routed_experts", "qwen3_moe": "num_experts",
    "qwen3_next": "num_experts", "qwen3_5_moe_text": "num_experts", "jamba": "num_experts",
    "kimi_linear": "num_experts", "glm4_moe_lite": "n_routed_experts", "axk1": "n_routed_experts",
    "longcat_flash": "n_routed_experts", "mimo_v2_flash": "n_routed_experts", "dbrx": "moe_num_experts",
}  # fmt: skip
_LAYERS = {
    "f": "full_attention", "w": "sliding_attention", "l": "linear_attention", "m": "mamba", "a": "attention",
    "v": "conv", "s": "sliding_attention", "o": "compressed_sparse_attention", "h": "heavily_compressed_attention",
}  # fmt: skip
_INT4_GROUP = {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}, "targets": ["Linear"]}
_QUANTISATION: dict[str, dict[str, object]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "mxfp4"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "int4experts": {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": _INT4_GROUP}, "ignore": ["re:.*self_attn.*"],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    name: str
    family: str
    aliases: tuple[str, ...]
    config: dict[str, object]
    """As a `config.json` of that family would state it."""


def catalogue_names() -> tuple[str, ...]:
    """Every model's own name, sorted; aliases are in the entries."""
    return tuple(sorted({name for _, name, _, _ in _lines()}))


def catalogue_entry(name: str) -> CatalogueEntry:
    entry = find_entry(name)
    if entry is None:
        raise ModelError(f"{name!r} is not in the catalogue: `quire models` lists all names")
    return entry


def find_entry(name: str) -> CatalogueEntry | None:
    """In any case, with `_` for `-`, and with an organisation in front."""
    line = _by_name().get(plain_name(name))
    return None if line is None else _entry(*line)


def plain_name(name: str) -> str:
    return name.rsplit("/", 1)[-1].strip().lower().replace("_", "-")


Line = tuple[str, str, tuple[str, ...], str]


@cache
def _lines() -> tuple[Line, ...]:
    text = Path(__file__).with_name("catalogue.txt").read_text(encoding="utf-8")
    return tuple(_split(line) for line in text.splitlines() if line and not line.startswith("#"))


def _split(line: str) -> Line:
    family, names, facts = line.split("#")[0].split(None, 2)
    name, *aliases = names.split(",")
    return family, name, tuple(aliases), facts


@cache
def _by_name() -> dict[str, Line]:
    return {name: line for line in _lines() for name in (line[1], *line[2])}


def _entry(family: str, name: str, aliases: tuple[str, ...], facts: str) -> CatalogueEntry:
    config: dict[str, object] = {"model_type": family, "dtype": "bfloat16"}
    pairs = dict(fact.split("=", 1) for fact in facts.split())
    for key, value in pairs.items():
        _add(config, family, key, value, int(pairs["L"]))
    return CatalogueEntry(name, family, aliases, config)


def _add(config: dict[str, object], family: str, key: str, value: str, layers: int) -> None:
    if key in _NUMBERS:
        config[_NUMBERS[key]] = None if value == "none" else int(value)
    elif key in _FLAGS:
        config[_FLAGS[key]] = value == "1"
    elif key in _TEXTS:
        config[_TEXTS[key]] = value
    elif key == "types":
        config["layer_types"] = [_LAYERS[letter] for letter in spelled_out(value, layers)]
    elif key == "experts":
        config[_EXPERTS.get(family, "num_local_experts")] = int(value)
    elif key == "quant":
        config["quantization_config"] = _QUANTISATION[value]
    elif key == "longrope":
        config |= {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": int(value)}
    elif key == "final":
        config["block_auto_adjust_ff_dim"] = value != "1"
    else:
        raise AssertionError(f"catalogue.txt: no such key {key!r}")


def spelled_out(pattern: str, layers: int) -> str:
    """`5w1f*` for 8 layers is `wwwwwfww`; `1h(1h1o)*` for 5 is `hhoho`; without `*` the pattern is complete."""
    if not pattern.endswith("*"):
        return _runs(pattern)
    head, bracket, rest = pattern[:-1].partition("(")
    start, cycle = (_runs(head), _runs(rest.rstrip(")"))) if bracket else ("", _runs(head))
    return start + "".join(itertools.islice(itertools.cycle(cycle), layers - len(start)))


def _runs(text: str) -> str:
    return "".join(letter * int(count) for count, letter in re.findall(r"(\d+)([a-z])", text))
