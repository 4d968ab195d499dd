"""A model as its memory sees it: layers in order, what each remembers, and how heavy the weights are."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.memory import Memory


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. No memories and no sharing: the layer keeps nothing (an MLP or expert block)."""

    memories: tuple[Memory, ...]
    shares_with: int | None = None
    """Index of the layer whose memory this one reads instead of keeping its own."""
    weight_bytes: int = 0
    """Weights that tensor-parallel ranks divide."""
    replicated_weight_bytes: int = 0
    """Weights that every tensor-parallel rank holds (norms, routers, latent down-projections)."""
    expert_weight_bytes: int = 0
    """Of those that ranks divide, the ones of routed experts."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed ones, of a layer that has them. 0: there are none, or nobody says."""

    count: int = 0
    per_token: int = 0
    """That a token chooses."""
    width: int = 0
    """Numbers of a token that go into each."""
    inner: int = 0
    """Numbers between its matrices."""

    @property
    def share(self) -> float:
        """Of them all, those that a token chooses; 1 where nobody says."""
        return min(1.0, self.per_token / self.count) if self.count and self.per_token else 1.0


NO_EXPERTS = Experts()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Frozen facts of one model. Equal facts give equal plans."""

    name: str
    family: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    """MTP layers, or those of a draft model: planned only when speculation asks for them."""
    max_length: int | None = None
    """The longest sequence the model itself supports; None: it has no limit of its own (recurrent models)."""
    hidden_size: int = 0
    intermediate_size: int = 0
    """Widest activation between two matrices, for the estimate of activations."""
    experts: Experts = NO_EXPERTS
    query_heads: int = 0
    vocab_size: int = 0
    embedding_bytes: int = 0
    head_bytes: int = 0
    """0 when the output head is tied to the embedding."""
    weights_known: bool = True
    """False where the description says nothing of weights (a hand-written shape)."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a reader should know: defaults taken from the family, parts left out."""
