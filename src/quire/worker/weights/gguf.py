"""A GGUF file of the llama architecture: configuration, and parameters by the names transformers uses.

GGUF keeps the two halves of each rotated head interleaved, transformers keeps them one after the other:

    in the file     a0 b0 a1 b1 a2 b2        rows of one head of q or k: pairs that rotate together
    here            a0 a1 a2 b0 b1 b2
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from quire.core.errors import ModelError
from quire.worker.weights.gguf_header import read_header

Floats = npt.NDArray[np.float32]

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_A_LAYER = {
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
READ = {"F32", "F16", *(sort.name for sort in gguf.quants._type_traits)}
"""Formats of tensors that `gguf` can decode."""
_SORTS = {int(sort): sort.name for sort in GGMLQuantizationType}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An open file, mapped into memory."""

    path: Path
    fields: dict[str, Any]
    """The metadata: `llama.block_count`, `tokenizer.ggml.tokens` and so on."""
    tensors: tuple[ReaderTensor, ...]

    @property
    def bytes(self) -> int:
        """Size of the parameters as 32-bit floats."""
        return sum(4 * int(tensor.n_elements) for tensor in self.tensors)

    def parameters(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names in transformers, and shapes; no values are read."""
        for tensor in self.tensors:
            yield _name(self.path, tensor.name), tuple(int(size) for size in reversed(tensor.shape))

    def read(self) -> Iterator[tuple[str, Floats]]:
        """The same, with their values: one at a time, in the file's order."""
        facts = Facts(self.path.name, self.fields)
        heads = {"attn_q": facts.number("attention.head_count"), "attn_k": facts.key_value_heads}
        for tensor, (name, shape) in zip(self.tensors, self.parameters(), strict=True):
            values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            match = _LAYER.fullmatch(tensor.name)
            if match and match[2] in heads:
                values = _join_halves(values, heads[match[2]])
            yield name, np.ascontiguousarray(values, dtype=np.float32)

    def config(self) -> dict[str, Any]:
        names = {tensor.name for tensor in self.tensors}
        return Facts(self.path.name, self.fields).config(names, len(self.fields["tokenizer.ggml.tokens"]))


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """The metadata of a file of that name."""

    name: str
    fields: Mapping[str, Any]

    @property
    def key_value_heads(self) -> int:
        return int(self.fields.get("llama.attention.head_count_kv", self.number("attention.head_count")))

    def config(self, names: Container[str], vocabulary: int) -> dict[str, Any]:
        """What transformers' LlamaConfig reads from config.json."""
        heads, width = self.number("attention.head_count"), self.number("embedding_length")
        rope_theta = _short(self.fields.get("llama.rope.freq_base", 10_000.0))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": self.number("feed_forward_length"),
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": int(self.fields.get("llama.attention.key_length", width // heads)),
            "hidden_act": "silu",
            "max_position_embeddings": self.number("context_length"),
            "rms_norm_eps": _short(self.fields["llama.attention.layer_norm_rms_epsilon"]),
            "rope_theta": rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
            "attention_bias": "blk.0.attn_q.bias" in names,
            "mlp_bias": "blk.0.ffn_gate.bias" in names,
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": self.fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.fields.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.fields.get("tokenizer.ggml.padding_token_id"),
        }

    def number(self, name: str) -> int:
        value = self.fields.get(f"llama.{name}")
        if not isinstance(value, int):
            raise ModelError(f"{self.name} has no number llama.{name}: is the file whole?")
        return value


def open_gguf(path: Path) -> GgufFile:
    """Maps the file; refuses by name what would be read wrongly."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, OverflowError, IndexError) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _refuse(path.name, fields, {tensor.name: tensor.tensor_type for tensor in reader.tensors})
    return GgufFile(path, fields, tuple(reader.tensors))


def gguf_config(path: Path) -> dict[str, Any]:
    """The configuration alone, without reading tokens or tensors."""
    header = read_header(path)
    _refuse(path.name, header.fields, header.sorts)
    return Facts(path.name, header.fields).config(header.sorts, header.lengths.get("tokenizer.ggml.tokens", 0))


def _refuse(name: str, fields: Mapping[str, Any], sorts: Mapping[str, int]) -> None:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{name} is of architecture {architecture}: GGUF files of llama are read, give safetensors")
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.startswith("rope_") for tensor in sorts):
        raise ModelError(f"{name} stretches its rotary embedding, which is not read from GGUF: give safetensors")
    if fields.get("llama.expert_count", 0):
        raise ModelError(f"{name} has experts, which are not read from GGUF: give safetensors")
    stored = {_SORTS.get(int(sort), f"type {sort}") for sort in sorts.values()}
    if unread := sorted(stored - READ):
        raise ModelError(f"{name} has tensors quantised as {', '.join(unread)}, which is not read: give safetensors")


def _name(path: Path, name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match and match[2] in _OF_A_LAYER:
        return f"model.layers.{match[1]}.{_OF_A_LAYER[match[2]]}.{match[3]}"
    if name in _WHOLE:
        return _WHOLE[name]
    raise ModelError(f"{path.name} has a tensor {name} that llama has no place for: give safetensors")


def _join_halves(values: Floats, heads: int) -> Floats:
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _short(value: float) -> float:
    """0.00001 rather than 9.999999747378752e-06: the shortest number that is the same 32-bit float."""
    return float(str(np.float32(value)))
