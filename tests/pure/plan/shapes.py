"""Small model shapes for tests, built from the words of core and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.dtypes import DType
from quire.core.memory import Follows, Memory, Part
from quire.models.shape import Layer, ModelShape


def attention(kind: str, heads: int = 8, width: int = 128, **numbers: int) -> Layer:
    parts = tuple(Part(name, heads, width, follows=Follows.KV) for name in ("key", "value"))
    return Layer((Memory(kind, parts, **numbers),))


def latent(rank: int = 512, rope: int = 64, tokens_per_state: int = 1) -> Layer:
    parts = (
        Part("latent", 1, rank, follows=Follows.KV, replicated=True, scale_bytes=4 * -(-rank // 128)),
        Part("rope", 1, rope, replicated=True),
    )
    return Layer((Memory("latent", parts, tokens_per_state=tokens_per_state),))


def state(size: int) -> Layer:
    part = Part("state", 1, size, dtype=DType.INT8, replicated=True)
    return Layer((Memory("state", (part,), purpose="state"),))


def model(layers: Sequence[Layer], max_length: int | None = 131_072, **facts: object) -> ModelShape:
    facts.setdefault("weights_known", False)
    return ModelShape("test", "test", tuple(layers), max_length=max_length, **facts)  # type: ignore[arg-type]


FULL = attention("full")
WINDOW = attention("window", window=1024)
STATE = state(2_146_304)
GEMMA_4_31B = [attention("window", 16, 256, window=1024)] * 50 + [attention("full", 4, 512)] * 10
GEMMA_3_27B = [attention("window", 16, 128, window=1024)] * 52 + [attention("full", 16, 128)] * 10
