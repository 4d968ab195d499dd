"""Small configurations to bend, and sums to compare."""

from __future__ import annotations

from quire.core.dtypes import DType
from quire.core.memory import Memory
from quire.models.shape import ModelShape

TINY_LLAMA: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    "dtype": "bfloat16",
}  # fmt: skip


def llama(**changes: object) -> dict[str, object]:
    return {**TINY_LLAMA, **changes}


def memory_bytes(memory: Memory, kv: DType = DType.BF16) -> int:
    """One token of a growing memory, or one request's state."""
    return sum(part.bytes(kv, None) for part in memory.parts)


def bytes_of_kind(shape: ModelShape, kind: str, kv: DType = DType.BF16) -> int:
    return sum(memory_bytes(memory, kv) for layer in shape.layers for memory in layer.memories if memory.kind == kind)


def token_bytes(shape: ModelShape, kv: DType = DType.BF16) -> int:
    """All layers together, states left out."""
    memories = [memory for layer in shape.layers for memory in layer.memories if memory.kind != "state"]
    return sum(memory_bytes(memory, kv) for memory in memories)


def kinds(shape: ModelShape) -> list[str]:
    """What each layer keeps, several memories joined by +."""
    return ["+".join(memory.kind for memory in layer.memories) or "none" for layer in shape.layers]


def weight_bytes(shape: ModelShape) -> int:
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    return layers + shape.embedding_bytes + shape.head_bytes
