"""One small layer of every kind, for tests that run whole engines on them."""

from __future__ import annotations

from quire.core.memory import Follows, Memory, Part
from quire.models.shape import Layer


def layer(kind: str, heads: int, **numbers: int) -> Layer:
    parts = tuple(Part(name, heads, 64, follows=Follows.KV, replicated=kind == "state") for name in ("key", "value"))
    return Layer((Memory(kind, parts, **numbers),))


KINDS = {
    "full": layer("full", 2),
    "window": layer("window", 2, window=50),
    "chunked": layer("chunked", 3, chunk=70),
    "sink": layer("sink", 2, sinks=20, window=33),
    "state": layer("state", 40),
    "cross": layer("cross", 1, encoder_tokens=90),
}
