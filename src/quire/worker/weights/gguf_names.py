"""Tensors of a GGUF file → parameters by the names transformers has, and what must be done to each.

Three architectures keep the two halves of each rotated head interleaved, transformers keeps them one after the other:

    in the file     a0 b0 a1 b1 a2 b2        rows of one head of q or k: pairs that rotate together
    here            a0 a1 a2 b0 b1 b2

Gate and up projections of experts are two tensors there, one here: gate first, or row by row in gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.core.errors import ModelError
from quire.worker.weights.gguf_config import EMBEDDING, HEAD
from quire.worker.weights.gguf_facts import Facts, shown
from quire.worker.weights.gguf_ropes import DIVISORS, LONG, SHORT

ROTATED_IN_PAIRS = ("llama", "granite", "smollm3")
NORMS_PLUS_ONE = ("gemma2", "gemma3")
_GPT_OSS = "gpt-oss"
_WHOLE = {EMBEDDING: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", HEAD: "lm_head.weight"}
_UNUSED = (DIVISORS, SHORT, LONG)
"""What config.json has."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_exps")
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_ROUTED = {"ffn_gate_inp": "mlp.gate"}
_SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NAMES = {
    "llama": _LLAMA | _ROUTED,
    "qwen2": _LLAMA,
    "qwen2moe": _LLAMA | _ROUTED | _SHARED,
    "qwen3": _LLAMA | _HEAD_NORMS,
    "qwen3moe": _LLAMA | _HEAD_NORMS | _ROUTED,
    "gemma2": _LLAMA | _GEMMA,
    "gemma3": _LLAMA | _HEAD_NORMS | _GEMMA,
    "phi3": _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    _GPT_OSS: _LLAMA
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
        "attn_sinks": "self_attn.sinks",
    },
}
"""Names of a layer's modules, by architecture."""
_SPARSE = ("llama", "qwen2moe", "qwen3moe", _GPT_OSS)
_READ_BY_ROWS = ("norm.", "mlp.gate.", "mlp.router.", "shared_expert_gate")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    sources: tuple[str, ...]
    """Tensors of the file. Two: gate and up, one after the other."""
    heads: int = 0
    """Halves of so many heads are interleaved in its rows; 0: nothing is."""
    minus: float = 0.0
    is_alternating: bool = False
    """Rows of the two sources alternate."""
    is_transposed: bool = False
    """transformers has the inputs before the outputs, as far as it is not packed."""

    @property
    def sort(self) -> str:
        """What a plan counts it as."""
        if ".mlp.experts." in self.name:
            return "experts"
        return {"model.embed_tokens.weight": "table", "lm_head.weight": "head"}.get(self.name, "matrices")

    @property
    def may_pack(self) -> bool:
        """Weights of linear layers, embeddings and experts are kept packed; norms, routers and biases are not."""
        is_weight = self.name.endswith(".weight") or (".mlp.experts." in self.name and not self.name.endswith("_bias"))
        return is_weight and not any(part in self.name for part in _READ_BY_ROWS)


def parameters_of(facts: Facts) -> Iterator[Parameter]:
    """In the order of the file; of joined tensors at the first."""
    heads = facts.number("attention.head_count")
    halves = {"attn_q": heads, "attn_k": facts.number("attention.head_count_kv", heads)}
    seen: set[str] = set()
    for tensor in facts.tensors:
        if tensor in _UNUSED or tensor in seen:
            continue
        found = _parameter(facts, tensor)
        match = _LAYER.fullmatch(tensor)
        if match and match[2] in halves and facts.architecture in ROTATED_IN_PAIRS:
            found = replace(found, heads=halves[match[2]])
        if facts.architecture in NORMS_PLUS_ONE and tensor.endswith("norm.weight"):
            found = replace(found, minus=1.0)
        seen.update(found.sources)
        yield found


def _parameter(facts: Facts, tensor: str) -> Parameter:
    if tensor in _WHOLE:
        return Parameter(_WHOLE[tensor], (tensor,))
    match = _LAYER.fullmatch(tensor)
    if match is not None:
        names, (layer, module, end) = NAMES[facts.architecture], match.groups()
        if _EXPERTS.fullmatch(module) and facts.architecture in _SPARSE:
            return _of_experts(facts, tensor, f"model.layers.{layer}.mlp.experts")
        if module in names:
            name = f"model.layers.{layer}.{names[module]}"
            return Parameter(name if module == "attn_sinks" else f"{name}.{end}", (tensor,))
    raise ModelError(
        f"{facts.name} has a tensor {shown(tensor)} that {facts.architecture} has no place for: give safetensors"
    )


def _of_experts(facts: Facts, tensor: str, name: str) -> Parameter:
    """Gate and up are read together, at the one that comes first."""
    suffix = "_bias" if tensor.endswith(".bias") else ""
    is_gpt_oss = facts.architecture == _GPT_OSS
    is_transposed = is_gpt_oss and not suffix
    if "ffn_down_exps" in tensor:
        return Parameter(f"{name}.down_proj{suffix}", (tensor,), is_transposed=is_transposed)
    if "ffn_gate_up_exps" in tensor:
        if is_gpt_oss:
            raise ModelError(f"{facts.name} has a tensor {tensor}, joined for another program: give safetensors")
        return Parameter(f"{name}.gate_up_proj{suffix}", (tensor,))
    pair = tuple(re.sub("ffn_(gate|up)_exps", f"ffn_{half}_exps", tensor) for half in ("gate", "up"))
    if missing := [other for other in pair if not facts.has(other)]:
        raise ModelError(f"{facts.name} has no tensor {missing[0]}, but {tensor}: is the file whole?")
    return Parameter(f"{name}.gate_up_proj{suffix}", pair, is_alternating=is_gpt_oss, is_transposed=is_transposed)
