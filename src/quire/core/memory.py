"""What a layer remembers, before anyone decides where the bytes go.

    Memory                     one way in which a layer remembers: how long (kind) and what (parts)
    └── Part                   one tensor: per token, `heads` rows of `width` numbers

A layer may have several memories (attention beside a recurrent state; a window beside a compressed history).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from quire.core.dtypes import DType


class Follows(str, Enum):
    """Which of the planner's settings may change a part's dtype."""

    KV = "kv"
    STATE = "state"
    ACTIVATIONS = "activations"
    """K/V's, unless that is quantised: then the part keeps its own."""
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
    """Bytes of scales beside each row once the row is stored in 8 bits."""
    origin: str = field(default="", compare=False)
    """The configuration's own fields behind heads × width, for `--explain`."""

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
    """One way in which a layer remembers. The numbers beside `kind` are that kind's own (see `quire.kinds`)."""

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
