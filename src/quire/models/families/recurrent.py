"""Models without attention: Mamba, Mamba-2 and RWKV-7. They have no longest sequence."""

from __future__ import annotations

from quire.core.dtypes import DType
from quire.core.memory import Part
from quire.core.units import round_up
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.common import Trunk, must_divide, read_trunk
from quire.models.families.mixers import read_mamba1, read_plain_mamba2, state_dtype
from quire.models.fields import Fields
from quire.models.memories import recurrent, state
from quire.models.weights import linear, norms


def _is_original(fields: Fields) -> bool:
    """The state-spaces spelling, whose class has other defaults (one group, tied embeddings)."""
    return "d_model" in fields.config


def _read_trunk(fields: Fields, tied: bool) -> Trunk:
    trunk = read_trunk(fields, tied=tied or _is_original(fields), limited=False)
    multiple = fields.integer("pad_vocab_size_multiple", absent=1)
    vocab = round_up(trunk.vocab, multiple)
    return Trunk(trunk.layers, trunk.hidden, vocab, trunk.tied, None)


_ORIGINAL = {"state_size": 128, "head_dim": 64, "n_groups": 1, "conv_kernel": 4}


def read_mamba2_model(fields: Fields) -> Blueprint:
    if _is_original(fields):
        fields.defaults = {**fields.defaults, **_ORIGINAL}
    fields.raw("ssm_cfg")
    trunk = _read_trunk(fields, tied=False)
    mixer = read_plain_mamba2(fields, trunk.hidden, checked=True)
    bias, conv_bias = fields.flag("use_bias"), fields.flag("use_conv_bias", absent=True)
    block = Block((mixer.memory(),), mixer.weights(trunk.hidden, (bias, conv_bias, bias)) + norms(trunk.hidden))
    return trunk.blueprint([block] * trunk.layers, query_heads=0, intermediate=2 * mixer.inner)


def read_mamba_model(fields: Fields) -> Blueprint:
    fields.raw("ssm_cfg")
    trunk = _read_trunk(fields, tied=True)
    inner = fields.optional_integer("intermediate_size") or fields.integer("expand", absent=2) * trunk.hidden
    fields.raw("expand")
    size, kernel = fields.spelling("state_size", "d_state"), fields.spelling("conv_kernel", "d_conv")
    mixer = read_mamba1(fields, trunk.hidden, inner, (size, kernel, "time_step_rank"))
    bias, conv_bias = fields.flag("use_bias"), fields.flag("use_conv_bias", absent=True)
    memory = mixer.memory("expand × hidden_size", size)
    block = Block((memory,), mixer.weights(trunk.hidden, bias, conv_bias) + norms(trunk.hidden))
    return trunk.blueprint([block] * trunk.layers, query_heads=0, intermediate=2 * inner)


def _rank(fields: Fields, name: str, scaled: float) -> int:
    """RWKV-7's rule for its small ranks: a multiple of 32 near the scaled width."""
    return fields.integer(name, absent=max(32, round(scaled / 32) * 32))


def _rwkv7_weights(fields: Fields, hidden: int, width: int) -> tuple[Weights, Weights]:
    """One layer's weights, and what the mix with the first layer's values adds to all later ones."""
    decay = _rank(fields, "decay_low_rank_dim", 1.8 * hidden**0.5)
    rate = _rank(fields, "a_low_rank_dim", 1.8 * hidden**0.5)
    value = _rank(fields, "v_low_rank_dim", 1.3 * hidden**0.5)
    gate = _rank(fields, "gate_low_rank_dim", 0.6 * hidden**0.8)
    small = Weights(matrices=2 * hidden * (decay + rate + gate), plain=2 * hidden)
    vectors = Weights(plain=3 * hidden + 2 * hidden, replicated=7 * hidden + 4 * hidden)
    layer = linear(hidden, 4 * hidden) + linear(hidden, width) + linear(width, hidden) + small + vectors
    return layer, Weights(matrices=2 * hidden * value, plain=hidden)


def read_rwkv7(fields: Fields) -> Blueprint:
    trunk = read_trunk(fields, limited=False)
    dim = fields.integer("head_dim")
    stated = fields.optional_integer("num_heads")
    heads = stated or must_divide(trunk.hidden, dim, "hidden_size", "head_dim", "state num_heads")
    if heads * dim != trunk.hidden:
        raise fields.wrong("num_heads", heads, f"with head_dim {dim} it must be {trunk.hidden // dim} for this width")
    width = fields.integer("intermediate_size", absent=4 * trunk.hidden)
    origin = f"num_heads {heads} × head_dim {dim} × head_dim {dim}"
    memory = state(
        recurrent("wkv", heads, dim * dim, state_dtype(fields), origin),
        Part("shift", 2, trunk.hidden, DType.BF16, replicated=True, origin=f"2 × hidden_size {trunk.hidden}"),
    )
    fields.raw("value_dim", "attn_mode")
    layer, later = _rwkv7_weights(fields, trunk.hidden, width)
    first = Block((memory,), layer + norms(2 * trunk.hidden))
    blocks = [first] + [Block((memory,), layer + later)] * (trunk.layers - 1)
    final = norms(2 * trunk.hidden)
    return trunk.blueprint(blocks, query_heads=0, intermediate=width, final=final)


FAMILIES = (
    Family("mamba2", read_mamba2_model, {
        "vocab_size": 32768, "state_size": 128, "head_dim": 64, "n_groups": 8, "conv_kernel": 4,
    }, ("Mamba2ForCausalLM",)),
    Family("mamba", read_mamba_model, {"vocab_size": 50280, "state_size": 16, "conv_kernel": 4}, ("MambaForCausalLM",)),
    Family("falcon_mamba", read_mamba_model, {"vocab_size": 50280, "state_size": 16, "conv_kernel": 4},
           ("FalconMambaForCausalLM",)),
    Family("rwkv7", read_rwkv7, {"vocab_size": 65536, "head_dim": 64}, ("RWKV7ForCausalLM",)),
)  # fmt: skip
