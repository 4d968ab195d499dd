"""What a local configuration does not say about the layers of a model: rules by class or by name.

Each rule is here because a model needs it; without it the proof of that model's split fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Sizes = Callable[[Any, int], Sequence[int]]
"""From the module that has the parameter's layer, and the size of the dimension: the sizes of its parts."""


def _halves(_owner: Any, size: int) -> Sequence[int]:
    return [size // 2] * 2


def _thirds(_owner: Any, size: int) -> Sequence[int]:
    return [size // 3] * 3


def _queries_keys_values(owner: Any, size: int) -> Sequence[int]:
    config, width = owner.config, owner.head_dim
    keys = getattr(owner, "num_key_value_heads", None) or config.num_key_value_heads
    return size - 2 * keys * width, keys * width, keys * width


def _one_key(owner: Any, size: int) -> Sequence[int]:
    """Queries, then the one key and value that they share."""
    return (size - 2 * owner.head_dim, owner.head_dim, owner.head_dim) if owner.multi_query else (size,)


def _falcon(owner: Any, size: int) -> Sequence[int]:
    return (size,) if owner.new_decoder_architecture else _one_key(owner, size)


def _gated_delta(owner: Any, _size: int) -> Sequence[int]:
    return owner.key_dim, owner.key_dim, owner.value_dim


def _mamba(owner: Any, _size: int) -> Sequence[int]:
    """Gates, inputs, B, C, and a time step for each head."""
    inner, group = owner.intermediate_size, owner.n_groups * owner.ssm_state_size
    return inner, inner, group, group, owner.num_heads


def _mamba_channels(owner: Any, _size: int) -> Sequence[int]:
    return _mamba(owner, 0)[1:4]


def _by_expert(owner: Any, size: int) -> Sequence[int]:
    return [size // owner.moe_num_experts] * int(owner.moe_num_experts)


MAMBA2 = (
    "BambaMixer", "FalconH1Mixer", "GraniteMoeHybridMambaLayer", "Mamba2Mixer", "NemotronHMamba2Mixer",
    "Zamba2MambaMixer",
)  # fmt: skip
GATED_DELTA = (
    "OlmoHybridGatedDeltaNet", "Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet",
)  # fmt: skip

PACKED: dict[tuple[str, str], Sizes] = {
    ("", "gate_up_proj"): _halves,
    ("DbrxAttention", "Wqkv"): _queries_keys_values,
    ("DbrxExpertGLU", "w1"): _by_expert,
    ("DbrxExpertGLU", "v1"): _by_expert,
    ("DbrxExpertGLU", "w2"): _by_expert,
    ("FalconAttention", "query_key_value"): _falcon,
    ("GPT2Attention", "c_attn"): _thirds,
    ("GPTBigCodeAttention", "c_attn"): _one_key,
    ("GraniteMoeHybridMLP", "input_linear"): _halves,
    ("GraniteMoeSharedMLP", "input_linear"): _halves,
    ("GraniteMoeSWAMLP", "input_linear"): _halves,
    ("JetMoeAttention", "kv_proj"): _halves,
    ("JetMoeMoE", "input_linear"): _halves,
    ("KimiLinearDeltaAttention", "conv1d"): _thirds,
    ("Lfm2MoeShortConv", "in_proj"): _thirds,
    ("Lfm2ShortConv", "in_proj"): _thirds,
    ("MambaMixer", "in_proj"): _halves,
    ("FalconMambaMixer", "in_proj"): _halves,
    ("JambaMambaMixer", "in_proj"): _halves,
    ("MptAttention", "Wqkv"): _thirds,
    ("Phi3Attention", "qkv_proj"): _queries_keys_values,
    **{(mixer, "in_proj"): _mamba for mixer in MAMBA2},
    ("FalconH1Mixer", "mup_vector"): _mamba,
    **{(mixer, "conv1d"): _mamba_channels for mixer in MAMBA2},
    **{(mixer, "in_proj_qkv"): _gated_delta for mixer in ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")},
    **{(mixer, "conv1d"): _gated_delta for mixer in GATED_DELTA},
    ("Zamba2MLP", "gate_up_proj_adapter_list"): _halves,
}
"""By the class that owns a layer (empty: any) and the layer's name: the parts of the dimension that is cut, where ranks
divide each part and not the whole."""
INTERLEAVED = frozenset({"GptOssExperts"})
"""Classes whose gates and inputs lie in pairs: ranks divide the whole."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A class that counts on the hidden size where it should count heads: its layers are made smaller by hand."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    """Attributes that ranks divide."""
    copies: tuple[str, ...] = ()
    """The same, of heads that several ranks may have a copy of."""


_SEPARATE = ("q_proj", "k_proj", "v_proj")
NARROW: dict[str, Narrow] = {
    "BitNetAttention": Narrow((*_SEPARATE, "attn_sub_norm"), ("o_proj",)),
    "BioGptAttention": Narrow(_SEPARATE, ("out_proj",), ("num_heads",)),
    "BloomAttention": Narrow(("query_key_value",), ("dense",), ("num_heads",)),
    "BloomMLP": Narrow(("dense_h_to_4h",), ("dense_4h_to_h",)),
    "DbrxAttention": Narrow(("Wqkv",), ("out_proj",), ("num_heads", "hidden_size"), ("num_key_value_heads",)),
    "FalconAttention": Narrow(("query_key_value",), ("dense",), ("num_heads",), ("num_kv_heads",)),
    "GPT2Attention": Narrow(("c_attn",), ("c_proj",), ("num_heads", "split_size")),
    "GPTBigCodeAttention": Narrow(
        ("c_attn",), ("c_proj",), ("num_heads", "embed_dim"), ("kv_heads", "num_key_value_groups")
    ),
    "GPTJAttention": Narrow(_SEPARATE, ("out_proj",), ("num_attention_heads",)),
    "GPTNeoSelfAttention": Narrow(_SEPARATE, ("out_proj",), ("num_heads",)),
    "GPTNeoXAttention": Narrow(("query_key_value",), ("dense",)),
    "GPTNeoXJapaneseAttention": Narrow(("query_key_value",), ("dense",), ("num_attention_heads", "hidden_size")),
    "GPTNeoXJapaneseMLP": Narrow(("dense_h_to_4h",), ("dense_4h_to_h",)),
    "HeliumAttention": Narrow(_SEPARATE, ("o_proj",)),
    "Lfm2MoeShortConv": Narrow(("in_proj", "conv"), ("out_proj",)),
    "Lfm2ShortConv": Narrow(("in_proj", "conv"), ("out_proj",)),
    "Lfm2MLP": Narrow(("w1", "w3"), ("w2",)),
    "MptAttention": Narrow(("Wqkv",), ("out_proj",), ("n_heads", "hidden_size")),
    "MptMLP": Narrow(("up_proj",), ("down_proj",)),
    "OlmoeAttention": Narrow((*_SEPARATE, "q_norm", "k_norm"), ("o_proj",)),
    "OPTAttention": Narrow(_SEPARATE, ("out_proj",), ("num_heads",)),
    "PersimmonAttention": Narrow(("query_key_value",), ("dense",), ("num_heads", "hidden_size")),
    "StableLmAttention": Narrow(_SEPARATE, ("o_proj",), ("num_heads", "hidden_size"), ("num_key_value_heads",)),
    "XGLMAttention": Narrow(_SEPARATE, ("out_proj",), ("num_heads", "embed_dim")),
}

TRANSPOSED = frozenset({"Conv1D"})
"""Layers whose weight is (…, input, output)."""
BLOCKS = {"JetMoeMoA": 1}
"""How many modules further up than the one that has the experts' layers a sum is complete."""
ONCE = {"JetMoeMoE": ("bias",), "JetMoeMoA": ("bias",)}
"""Parameters that a block adds to its partial sums: the first rank alone has them."""
APART = frozenset({"AXK1MoE"})
"""Blocks that add other things to what their experts compute: the experts' sum comes before."""
SINGLE = frozenset({"LongcatFlashExperts.identity_expert"})
"""Modules by their owner's class, whose results are whole on every rank and join partial sums: only those of the first
rank may."""
ROWS_OF_EXPERTS = frozenset({"DbrxExpertGLU"})
"""Experts whose matrices lie one after another in one of two dimensions."""
