"""A model and the smaller one that guesses for it, as one shape: one plan, one pool, one bound for both.

    layers   ├ 0 … n − 1: the model's own ┼ n … n + m − 1: the draft model's ┤

Layers of both that remember alike are layers of one kind, so they share pages: whatever becomes of a page (taken, found
again, moved, given back) becomes of what both models keep there.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import InputError
from quire.models.shape import Layer, ModelShape


def with_draft_model(model: ModelShape, draft: ModelShape) -> ModelShape:
    """Lengths up to the shorter limit of both. Raises where the draft model counts other tokens."""
    if draft.vocab_size != model.vocab_size:
        raise InputError(
            f"draft model {draft.name} knows {draft.vocab_size:,} tokens and {model.name} {model.vocab_size:,}: "
            "guesses need the same vocabulary, so choose a draft model of the same family"
        )
    limits = [one.max_length for one in (model, draft) if one.max_length is not None]
    return replace(
        model,
        draft_layers=tuple(_behind(layer, len(model.layers)) for layer in draft.layers),
        max_length=min(limits, default=None),
        stretched_length=_stretched(model, draft),
        ropes=model.ropes + tuple(replace(rope, layers=f"draft {rope.layers}".strip()) for rope in draft.ropes),
        hidden_size=max(model.hidden_size, draft.hidden_size),
        intermediate_size=max(model.intermediate_size, draft.intermediate_size),
        experts=max(model.experts, draft.experts, key=lambda one: one.per_token * max(one.width, one.inner)),
        embedding_bytes=model.embedding_bytes + draft.embedding_bytes + draft.head_bytes,
        weights_known=model.weights_known and draft.weights_known,
        notes=(*model.notes, f"layers from {len(model.layers)} on are those of the draft model {draft.name}"),
    )


def _stretched(model: ModelShape, draft: ModelShape) -> int | None:
    """As far as both reach, if that is beyond the shorter limit of both."""
    if model.stretched_length is None and draft.stretched_length is None:
        return None
    longest = [one.stretched_length or one.max_length for one in (model, draft)]
    return min((length for length in longest if length is not None), default=None)


def _behind(layer: Layer, layers: int) -> Layer:
    return layer if layer.shares_with is None else replace(layer, shares_with=layer.shares_with + layers)
