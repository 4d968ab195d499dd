"""Mamba mixers: their states and their weights, shared by the pure and the hybrid families."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError, ModelError
from quire.core.memory import Memory
from quire.models.blueprint import Weights
from quire.models.families.common import must_divide
from quire.models.fields import Fields
from quire.models.memories import columns, recurrent, state
from quire.models.weights import linear, norms


def state_dtype(fields: Fields) -> DType:
    """Recurrent matrices are kept in fp32 unless the configuration says otherwise."""
    text = fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if text is None:
        return DType.FP32
    try:
        return parse_dtype(text, "mamba_ssm_dtype")
    except InputError as error:
        raise ModelError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of one Mamba-2 mixer, and how the configuration spells them."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    dtype: DType
    names: tuple[str, str, str, str]
    """Spellings of heads, head_dim, groups and state."""

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def memory(self) -> Memory:
        heads, head_dim, groups, size = self.names
        wide = f"{heads} {self.heads} × {head_dim} {self.head_dim}"
        narrow = f"{groups} {self.groups} × 2 × {size} {self.state}"
        return state(
            recurrent("ssm", self.heads, self.head_dim * self.state, self.dtype, f"{wide} × {size} {self.state}"),
            columns("conv_x", self.heads, self.head_dim, self.kernel, wide),
            columns("conv_bc", self.groups, 2 * self.state, self.kernel, narrow),
        )

    def weights(self, hidden: int, biases: tuple[bool, bool, bool], gated_norm: bool = True) -> Weights:
        """`biases`: of the projection in, of the convolution, of the projection out."""
        inward, conv_bias, outward = biases
        channels = self.inner + 2 * self.groups * self.state
        total = linear(hidden, self.inner + channels + self.heads, inward) + linear(self.inner, hidden, outward)
        total += Weights(plain=channels * (self.kernel + (1 if conv_bias else 0)) + 3 * self.heads)
        return total + Weights(plain=self.inner if gated_norm else 0)


def read_mamba2(fields: Fields, hidden: int, inner: int | None) -> Mamba2:
    """The hybrids' spelling. `inner`, where known, must be what heads × head_dim give."""
    heads = fields.integer("mamba_n_heads")
    names = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state")
    if fields.raw("mamba_d_head") in (None, "auto"):
        wide = inner if inner is not None else fields.integer("mamba_expand", absent=2) * hidden
        head_dim = must_divide(wide, heads, "mamba width", "mamba_n_heads", "state mamba_d_head")
    else:
        head_dim = fields.integer("mamba_d_head")
    if inner is not None and heads * head_dim != inner:
        product = f"mamba_n_heads {heads} × mamba_d_head {head_dim} is {heads * head_dim:,}"
        raise ModelError(f"{product}, but the mixer is {inner:,} wide: correct one of them")
    return _mamba2(fields, heads, head_dim, names, ("mamba_n_groups",), ("mamba_d_state",), ("mamba_d_conv",))


def _mamba2(
    fields: Fields, heads: int, head_dim: int, names: tuple[str, str, str, str],
    groups: tuple[str, ...], size: tuple[str, ...], kernel: tuple[str, ...],
) -> Mamba2:  # fmt: skip
    count = fields.integer(*groups)
    must_divide(heads, count, names[0], groups[0], "each group serves equally many heads")
    taps = fields.integer(*kernel, minimum=2)  # one tap looks at its own token and remembers nothing
    return Mamba2(heads, head_dim, count, fields.integer(*size), taps, state_dtype(fields), names)


def read_plain_mamba2(fields: Fields, hidden: int, checked: bool) -> Mamba2:
    """The spelling of Mamba-2 itself, old (`nheads`, `headdim`) and new (`num_heads`, `head_dim`)."""
    heads_names, dim_names = ("num_heads", "nheads", "mamba_num_heads"), ("head_dim", "headdim", "mamba_head_dim")
    if checked:
        head_dim = fields.integer(*dim_names)
        inner = fields.integer("expand", absent=2) * hidden
        stated = fields.optional_integer(*heads_names)
        heads = stated or must_divide(inner, head_dim, "expand × hidden_size", "head_dim", "state num_heads")
        if heads * head_dim != inner:
            product = f"num_heads {heads} × head_dim {head_dim} is {heads * head_dim:,}"
            raise ModelError(f"{product}, but expand × hidden_size is {inner:,}: correct one of them")
    else:
        heads, head_dim = fields.integer("mamba_num_heads"), fields.integer("mamba_head_dim")
    names = (fields.spelling(*heads_names), fields.spelling(*dim_names), "n_groups", "state_size")
    groups, size = ("n_groups", "ngroups", "mamba_n_groups"), ("state_size", "d_state", "ssm_state_size")
    return _mamba2(fields, heads, head_dim, names, groups, size, ("conv_kernel", "d_conv", "mamba_d_conv"))


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Sizes of one Mamba-1 mixer: every channel has its own small state, so ranks divide channels."""

    inner: int
    state: int
    kernel: int
    rank: int
    dtype: DType

    def memory(self, expand: str, size: str) -> Memory:
        return state(
            recurrent("ssm", self.inner, self.state, self.dtype, f"{expand} = {self.inner} × {size} {self.state}"),
            columns("conv", self.inner, 1, self.kernel, f"{expand} = {self.inner}"),
        )

    def weights(self, hidden: int, bias: bool, conv_bias: bool) -> Weights:
        total = linear(hidden, 2 * self.inner, bias) + linear(self.inner, hidden, bias)
        total += linear(self.inner, self.rank + 2 * self.state) + linear(self.rank, self.inner, bias=True)
        return total + Weights(plain=self.inner * (self.kernel + (1 if conv_bias else 0) + self.state + 1))


def read_mamba1(fields: Fields, hidden: int, inner: int, names: tuple[str, str, str]) -> Mamba1:
    """`names` spell the state's size, the kernel and the rank of the time step."""
    size, kernel, rank = names
    stated = fields.raw(rank)
    width = -(-hidden // 16) if stated in (None, "auto") else fields.integer(rank)
    return Mamba1(inner, fields.integer(size), fields.integer(kernel, minimum=2), width, state_dtype(fields))


def inner_norms(mixer: Mamba1) -> Weights:
    """Jamba normalises the time step and both projections of the state."""
    return norms(mixer.rank + 2 * mixer.state)
