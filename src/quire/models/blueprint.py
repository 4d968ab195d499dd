"""What a family hands back: layers with their memories and their weights, before bytes are counted.

Family ── read(Fields) ──> Blueprint ── Precision ──> ModelShape
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from quire.core.memory import Memory
from quire.models.fields import Fields


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers of parameters, by who holds them and whether a quantised checkpoint shrinks them."""

    matrices: int = 0
    """Divided by ranks; shrunk."""
    experts: int = 0
    """Routed experts: divided by ranks; shrunk, in some checkpoints they alone."""
    latent: int = 0
    """Matrices that every rank holds (down-projections to a shared latent, indexers); shrunk."""
    plain: int = 0
    """Divided by ranks, kept at the checkpoint's dtype: biases, convolutions, decays."""
    replicated: int = 0
    """On every rank at the checkpoint's dtype: norms, routers."""

    def __add__(self, other: Weights) -> Weights:
        return Weights(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        return self.matrices + self.experts + self.latent + self.plain + self.replicated


@dataclass(frozen=True, slots=True)
class Block:
    """One layer of a blueprint."""

    memories: tuple[Memory, ...]
    weights: Weights
    shares_with: int | None = None


@dataclass(frozen=True, slots=True)
class Blueprint:
    blocks: tuple[Block, ...]
    hidden_size: int
    vocab_size: int
    tied: bool
    query_heads: int
    intermediate_size: int
    max_length: int | None
    drafts: tuple[Block, ...] = ()
    final: Weights = field(default_factory=Weights)
    """After the last layer: its norm, and what else sits before the head."""
    more_embeddings: int = 0
    """Parameters of embedding tables besides the vocabulary's."""
    head_bias: int = 0
    embedding_size: int = 0
    """Of the tokens' embeddings and of the head's inputs, where that is not `hidden_size`."""

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.hidden_size


@dataclass(frozen=True, slots=True)
class Family:
    """How one `model_type` is read. `defaults` are those its published configuration class documents."""

    model_type: str
    read: Callable[[Fields], Blueprint]
    defaults: Mapping[str, int]
    architectures: tuple[str, ...] = ()
