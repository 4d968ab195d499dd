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
class Rope:
    """Rotary frequencies that depend on how long a sequence is. A plan fixes them for all its requests, from its
    longest length: keys that one request leaves in the cache are then right for every other."""

    sort: str
    """`longrope`: short or long factors; `dynamic`: a base that grows with the length."""
    original_tokens: int
    """Up to this length, the frequencies are those that the model was first trained with."""
    layers: str = ""
    """The type of layers that have them; empty: all."""
    factor: float = 1.0
    """How many times the original length `dynamic` frequencies may be stretched to."""

    def chosen(self, max_length: int) -> str:
        """What a plan with this longest length fixes. Equal words: equal keys."""
        which = f"{self.layers} {self.sort}" if self.layers else self.sort
        if self.sort == "longrope":
            return f"{which} {'long' if max_length > self.original_tokens else 'short'}"
        return f"{which} {max(max_length, self.original_tokens)}"


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
    stretched_length: int | None = None
    """The longest that may be asked for, where rotary frequencies can be stretched beyond `max_length`."""
    ropes: tuple[Rope, ...] = ()
    """Those that follow from the plan's longest length; a draft model's come after the model's own."""
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
