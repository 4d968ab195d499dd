"""What a layer remembers, before the planner decides where the bytes go.

    Memory                     one way in which a layer remembers: how long (kind) and what (parts)
    └── Part                   one tensor: per token, `heads` rows of `width` numbers

A layer may have several memories (attention and a recurrent state; a window and a compressed history).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from quire.core.dtypes import DType
from quire.core.errors import PlanError


class Follows(str, Enum):
    """Which of the planner's settings may change a part's dtype."""

    KV = "kv"
    STATE = "state"
    ACTIVATIONS = "activations"
    """The K/V dtype, unless that is quantised: then the part keeps its own."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor that a layer keeps for each token (for each folded state, or for each request, as its kind says)."""

    name: str
    heads: int
    width: int
    dtype: DType = DType.BF16
    follows: Follows = Follows.NOTHING
    replicated: bool = False
    """True: every tensor-parallel rank keeps all of it (latents). False: ranks divide the heads."""
    scale_bytes: int = 0
    """Bytes of scales stored with each row when the row is stored in 8 bits."""
    origin: str = field(default="", compare=False)
    """The fields of the model's configuration that heads × width come from, for `--explain`."""

    def stored_dtype(self, kv_dtype: DType, state_dtype: DType | None) -> DType:
        if self.follows is Follows.KV:
            return kv_dtype
        if self.follows is Follows.ACTIVATIONS and not kv_dtype.is_quantised:
            return kv_dtype
        if self.follows is Follows.STATE and state_dtype is not None:
            return state_dtype
        return self.dtype

    def row_bytes(self, kv_dtype: DType, state_dtype: DType | None) -> int:
        dtype = self.stored_dtype(kv_dtype, state_dtype)
        return self.width * dtype.bytes + (self.scale_bytes if dtype.is_quantised else 0)

    def bytes(self, kv_dtype: DType, state_dtype: DType | None) -> int:
        """All heads, as if one device held everything."""
        return self.heads * self.row_bytes(kv_dtype, state_dtype)


@dataclass(frozen=True, slots=True)
class Memory:
    """One way in which a layer remembers. Which of the numbers apply depends on `kind` (see `quire.kinds`)."""

    kind: str
    parts: tuple[Part, ...]
    window: int | None = None
    chunk: int | None = None
    sinks: int | None = None
    tokens_per_state: int = 1
    encoder_tokens: int | None = None
    rewinds: bool = True
    """A recurrent state cannot drop a rejected draft token: it must be kept once per lookahead token."""
    purpose: str = "attention"
    """What the bytes are for, in reports: attention, indexer, compressor, state."""
    others: tuple[tuple[str, int], ...] = ()
    """Further numbers by name, which only this kind has."""

    @classmethod
    def of(cls, kind: str, parts: tuple[Part, ...], numbers: Mapping[str, Any]) -> Memory:
        """A memory with a kind's numbers by name; those that are no field here go to `others`."""
        own = {name: value for name, value in numbers.items() if name in cls.__slots__}
        others = tuple((name, value) for name, value in numbers.items() if name not in own)
        return cls(kind, parts, **own, others=others)

    def number(self, name: str) -> int:
        """One of the kind's numbers; raises if it is missing."""
        value = dict(self.others).get(name, getattr(self, name, None))
        if not isinstance(value, int):
            raise PlanError(f"a layer of kind {self.kind} needs {name}, which is missing")
        return value
