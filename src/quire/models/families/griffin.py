"""RecurrentGemma: recurrent blocks among layers with a window."""

from __future__ import annotations

from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import must_divide, read_heads, read_trunk
from quire.models.families.mixers import state_dtype
from quire.models.fields import Fields
from quire.models.memories import columns, recurrent, state, windowed
from quire.models.weights import AttentionStyle, attention, linear, mlp, norms

_WORDS = {"recurrent": "recurrent", "attention": "window"}


def _kinds(fields: Fields, layers: int) -> list[str]:
    """`block_types` repeats."""
    given = fields.items("block_types") or ["recurrent", "recurrent", "attention"]
    for i, word in enumerate(given):
        if not isinstance(word, str) or word not in _WORDS:
            raise fields.wrong(f"block_types[{i}]", word, f"recurrent_gemma knows {', '.join(_WORDS)}")
    fields.raw("layers_block_type", "layer_types", "_block_types")
    return [_WORDS[str(given[layer % len(given)])] for layer in range(layers)]


def _block_weights(hidden: int, width: int, kernel: int, heads: int) -> Weights:
    """Three projections, a convolution, and two gates whose matrices connect numbers of one head."""
    own = must_divide(width, heads, "lru_width", "num_attention_heads", "gates have one matrix for each head")
    ends = linear(hidden, width, True) + linear(hidden, width, True) + linear(width, hidden, True)
    return ends + Weights(matrices=2 * heads * own * own, plain=width * (kernel + 1) + 3 * width)


def read(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, tied=True, limited=False)
    heads = read_heads(fields, trunk.hidden)
    kinds = _kinds(fields, trunk.layers)
    width = fields.integer("lru_width", absent=trunk.hidden)
    kernel = fields.integer("conv1d_width", absent=4, minimum=2)
    inner = must_divide(fields.integer("intermediate_size"), 2, "intermediate_size", "2", "half of it gates the other")
    bias = fields.flag("attention_bias")
    rest = mlp(trunk.hidden, inner, True) + norms(2 * trunk.hidden)
    vector = recurrent("lru", heads.query, width // heads.query, state_dtype(fields), f"lru_width {width}")
    own = {
        "window": Block(
            (windowed(heads, fields.integer("attention_window_size", "sliding_window")),),
            attention(trunk.hidden, heads, AttentionStyle(bias, True)) + rest,
        ),
        "recurrent": Block(
            (state(vector, columns("conv", width, 1, kernel, f"lru_width {width}")),),
            _block_weights(trunk.hidden, width, kernel, heads.query) + rest,
        ),
    }
    return trunk.blueprint([own[kind] for kind in kinds], query_heads=heads.query, intermediate=max(inner, 2 * width))


FAMILIES = (
    Family("recurrent_gemma", read, {
        "vocab_size": 256000, "intermediate_size": 7680, "attention_window_size": 2048,
    }, ("RecurrentGemmaForCausalLM",)),
)  # fmt: skip
