"""A small model of a checkpoint's own configuration, for the proof of its split: sizes that ranks can divide, and as
many heads that others share, compared with ranks, as the model has.

    model   64 heads share 8 keys, 4 ranks     twin   16 heads share 8     each rank has keys of its own
    model    8 heads share 1 key,  2 ranks     twin    4 heads share 1     ranks have copies
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from quire.core.units import round_up
from quire.worker.ranks.local import PARTS, WIDTHS
from quire.worker.support.tiny import twin_config

WIDTH_UNIT = 8
"""Widths of a twin are multiples of this on each rank."""
MOST_STATE_HEADS = 8
"""Heads of a twin's recurrent layers, whose widths follow from the hidden size."""
SHARING = (
    ("num_attention_heads", "num_key_value_heads"), ("num_attention_heads", "num_kv_heads"),
    ("num_attention_heads", "num_global_key_value_heads"), ("linear_num_value_heads", "linear_num_key_heads"),
    ("linear_num_heads", ""),
)  # fmt: skip
"""Fields of heads, and of those that they share."""
GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")


def ranked_twin(config: Any, ranks: int) -> Any:
    text = config.get_text_config(decoder=True)
    twin = twin_config(config)
    parts = [(getattr(twin, name), getattr(text, name)) for name in PARTS if hasattr(text, name)]
    for part, given in ((twin, text), *parts):
        names = getattr(type(given), "attribute_map", {})
        for field in WIDTHS:
            _change(part, names.get(field, field), lambda value: round_up(value, WIDTH_UNIT * ranks))
        for heads, shared in SHARING:
            _resize(part, given, (names.get(heads, heads), names.get(shared, shared)), ranks)
        for field in GROUPS:
            count = given.__dict__.get(field)
            if isinstance(count, int) and field in part.__dict__:
                part.__dict__[field] = count if count < ranks else min(ranks, MOST_STATE_HEADS)
    return twin


def _resize(twin: Any, given: Any, fields: tuple[str, str], ranks: int) -> None:
    heads, shared = fields
    count, total = given.__dict__.get(shared), given.__dict__.get(heads)
    fewest = ranks
    if isinstance(count, int) and isinstance(twin.__dict__.get(shared), int):
        twin.__dict__[shared] = own = count if count < ranks else ranks * min(2, count // ranks)
        fewest = own * 2 if isinstance(total, int) and total > count else own
    _change(twin, heads, lambda value: round_up(max(value, fewest), ranks))


def _change(config: Any, field: str, change: Callable[[int], int]) -> None:
    value = config.__dict__.get(field)
    if isinstance(value, list):
        config.__dict__[field] = [change(one) for one in value]
    elif isinstance(value, int):
        config.__dict__[field] = change(value)


def spread_weights(model: Any) -> None:
    """Random numbers in every parameter, so that each shows in the logits: norms and biases too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.rand(parameter.shape, generator=generator) * 0.4 - 0.2)
