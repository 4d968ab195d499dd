"""A tiny llama as GGUF, and the parameters it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HEADS, KEY_VALUE_HEADS, HEAD, WIDTH, INNER, LAYERS = 4, 2, 16, 64, 96, 2
Parameters = dict[str, npt.NDArray[np.float32]]
NAMES = {
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD, WIDTH)),
    "attn_k": ("self_attn.k_proj", (KEY_VALUE_HEADS * HEAD, WIDTH)),
    "attn_v": ("self_attn.v_proj", (KEY_VALUE_HEADS * HEAD, WIDTH)),
    "attn_output": ("self_attn.o_proj", (WIDTH, HEADS * HEAD)),
    "ffn_gate": ("mlp.gate_proj", (INNER, WIDTH)),
    "ffn_up": ("mlp.up_proj", (INNER, WIDTH)),
    "ffn_down": ("mlp.down_proj", (WIDTH, INNER)),
    "attn_norm": ("input_layernorm", (WIDTH,)),
    "ffn_norm": ("post_attention_layernorm", (WIDTH,)),
}


def write_gguf(
    path: Path, tokenizer: tokenizers.Tokenizer, sort: GGMLQuantizationType = GGMLQuantizationType.F32
) -> Parameters:
    """Norms stay 32-bit floats; every other parameter is stored as `sort`."""
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    _write_settings(writer, tokenizer)
    parameters: Parameters = {}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd": ("model.embed_tokens", (tokenizer.get_vocab_size(), WIDTH))
    }
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{ours}": (f"model.layers.{layer}.{n}", shape) for ours, (n, shape) in NAMES.items()}
    tensors["output_norm"] = ("model.norm", (WIDTH,))
    for name, (theirs, shape) in tensors.items():
        values = random.normal(size=shape).astype(np.float32)
        parameters[f"{theirs}.weight"] = values
        stored = interleave(values, name.split(".")[-1])
        kept = GGMLQuantizationType.F32 if len(shape) == 1 else sort
        writer.add_tensor(f"{name}.weight", quantize(stored, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return parameters


def interleave(values: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    """Row by row: the first half of a head goes to even rows, the second to odd ones."""
    if name not in ("attn_q", "attn_k"):
        return values
    stored = np.empty_like(values)
    for head in range(len(values) // HEAD):
        for row in range(HEAD):
            half, pair = divmod(row, HEAD // 2)
            stored[head * HEAD + 2 * pair + half] = values[head * HEAD + row]
    return stored


def _write_settings(writer: GGUFWriter, tokenizer: tokenizers.Tokenizer) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if number < 3 else 1 for _, number in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
