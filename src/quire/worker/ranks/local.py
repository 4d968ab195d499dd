"""The configuration of one rank's share of a model, from which transformers builds that share.

    whole   num_attention_heads 32   num_key_value_heads 8   intermediate_size 14,336
    local   num_attention_heads 16   num_key_value_heads 4   intermediate_size  7,168      of 2 ranks

A layer's code is then right for its share by construction: it counts the heads that it has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from quire.core.errors import ModelError

HEADS = (
    "num_attention_heads", "num_attention_heads_per_layer", "linear_num_value_heads", "linear_num_heads",
    "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads",
)  # fmt: skip
"""Every rank has an equal number of these."""
SHARED_HEADS = (
    "num_key_value_heads", "num_kv_heads", "kv_n_heads", "num_global_key_value_heads", "linear_num_key_heads",
    "mamba_n_groups", "n_groups", "mamba_ngroups",
)  # fmt: skip
"""Heads that others share: where there are fewer than ranks, several ranks have a copy of one."""
WIDTHS = (
    "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "intermediate_size_mlp", "moe_shared_expert_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size",
    "ffn_dim", "n_inner", "mamba_d_ssm", "lru_width",
)  # fmt: skip
FACTORS = ("expand", "mamba_expand")
"""Widths as multiples of the hidden size."""
PARTS = ("attn_config", "ffn_config")
"""Fields that are configurations themselves."""


class Multiple(float):
    """A factor that is not whole for one rank, where its product is."""

    def __mul__(self, other: Any) -> Any:
        return round(float(self) * other)

    __rmul__ = __mul__


def local_config(config: Any, ranks: int) -> Any:
    """Raises ModelError with the field that ranks do not divide."""
    made = copy.deepcopy(config)
    text = made.get_text_config(decoder=True)
    _fix_head_width(text)
    for part in (text, *(getattr(text, name) for name in PARTS if hasattr(text, name))):
        for field, divide in _fields(part):
            value = part.__dict__.get(field)
            if value is not None:
                part.__dict__[field] = divide(field, value, ranks)  # types are checked where fields are assigned
    return made


def _fields(config: Any) -> Iterator[tuple[str, Callable[[str, Any, int], Any]]]:
    names = getattr(type(config), "attribute_map", {})
    sorts = ((HEADS, equal_part), (SHARED_HEADS, part_or_copy), (WIDTHS, equal_part), (FACTORS, _factor))
    for fields, divide in sorts:
        for field in dict.fromkeys(names.get(field, field) for field in fields):
            yield field, divide


def _fix_head_width(text: Any) -> None:
    """A width that follows from the hidden size would grow with fewer heads."""
    heads, hidden = getattr(text, "num_attention_heads", None), getattr(text, "hidden_size", None)
    if isinstance(heads, int) and hidden and text.__dict__.get(text.attribute_map.get("head_dim", "head_dim")) is None:
        text.__dict__[text.attribute_map.get("head_dim", "head_dim")] = hidden // heads


def equal_part(field: str, value: Any, ranks: int) -> Any:
    """A number, or each of a list, divided by the ranks."""
    if isinstance(value, list | tuple):
        return [equal_part(field, one, ranks) for one in value]
    if value % ranks:
        most = max(count for count in range(1, ranks) if value % count == 0)
        raise ModelError(f"{field} {value:,} cannot be divided among {ranks} ranks: choose --tensor-parallel {most}")
    return value // ranks


def part_or_copy(field: str, value: Any, ranks: int) -> Any:
    """The same of heads that several ranks may have a copy of."""
    if isinstance(value, list | tuple):
        return [part_or_copy(field, one, ranks) for one in value]
    return 1 if value < ranks and ranks % value == 0 else equal_part(field, value, ranks)


def _factor(_field: str, value: Any, ranks: int) -> Any:
    return Multiple(value / ranks)
