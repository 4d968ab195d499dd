"""Nemotron-H and Nemotron 3: each layer is one of mixer, attention, MLP or experts, as a pattern spells it."""

from __future__ import annotations

from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families.attention import read_drafts
from quire.models.families.common import Trunk, read_heads, read_length, read_tied
from quire.models.families.mixers import read_plain_mamba2
from quire.models.fields import MOST_LAYERS, Fields
from quire.models.memories import Heads, full, windowed
from quire.models.weights import AttentionStyle, attention, draft_glue, experts, mlp, norms, router

_LETTERS = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}
_WORDS = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "full", "full_attention": "full", "mlp": "mlp",
    "moe": "moe",
}  # fmt: skip


def _pattern(fields: Fields, name: str) -> list[str] | None:
    text = fields.text(name)
    if text is None:
        return None
    if not text or set(text) - set(_LETTERS):
        raise fields.wrong(name, text, "use M (mixer), * (attention), - (MLP) and E (experts)")
    return [_LETTERS[letter] for letter in text]


def _kinds(fields: Fields) -> list[str]:
    listed = next((name for name in ("layers_block_type", "layer_types") if fields.raw(name) is not None), None)
    pattern = _pattern(fields, "hybrid_override_pattern")
    if listed is not None:
        kinds = fields.kinds(listed, len(fields.items(listed) or ()), _WORDS) or []
    elif pattern is not None:
        kinds = pattern
    else:
        raise fields.missing("hybrid_override_pattern", "spell the layers with M, *, - and E")
    stated = fields.integer("num_hidden_layers", absent=len(kinds), maximum=MOST_LAYERS)
    if stated != len(kinds):
        name = listed or "hybrid_override_pattern"
        raise ModelError(f"{name} has {len(kinds)} entries for {stated} layers: correct num_hidden_layers or it")
    return kinds


def _moe(fields: Fields, hidden: int, bias: bool) -> tuple[Weights, int]:
    """Experts may work in a narrower latent space than the model's."""
    count, width = fields.integer("n_routed_experts"), fields.integer("moe_intermediate_size")
    shared = fields.integer("moe_shared_expert_intermediate_size")
    fields.integer("n_shared_experts", absent=1, minimum=0)
    latent = fields.optional_integer("moe_latent_size")
    total = experts(latent or hidden, width, count, gated=False) + router(hidden, count, bias=True)
    total += mlp(hidden, shared, bias, gated=False)
    if latent is not None:
        total += Weights(latent=2 * hidden * latent, replicated=(hidden + latent) if bias else 0)
    return total, max(width, shared)


def _blocks(fields: Fields, hidden: int, heads: Heads, kinds: set[str]) -> tuple[dict[str, Block], int]:
    """A block of each kind that occurs, and the widest activation among them."""
    window, bias, mlp_bias = fields.optional_integer("sliding_window"), fields.flag("use_bias"), fields.flag("mlp_bias")
    memory = full(heads) if window is None else windowed(heads, window)
    blocks, width = {"full": Block((memory,), attention(hidden, heads, AttentionStyle()) + norms(hidden))}, 0
    if "mlp" in kinds:
        width = fields.integer("intermediate_size")
        blocks["mlp"] = Block((), mlp(hidden, width, mlp_bias, gated=False) + norms(hidden))
    if "mamba" in kinds:
        mixer = read_plain_mamba2(fields, hidden, checked=False)
        weights = mixer.weights(hidden, (bias, fields.flag("use_conv_bias", absent=True), bias))
        blocks["mamba"] = Block((mixer.memory(),), weights + norms(hidden))
        width = max(width, 2 * mixer.inner)
    if "moe" in kinds:
        weights, wide = _moe(fields, hidden, mlp_bias)
        blocks["moe"] = Block((), weights + norms(hidden))
        width = max(width, wide)
    return blocks, width


def read(fields: Fields) -> Blueprint:
    kinds = _kinds(fields)
    hidden = fields.integer("hidden_size")
    trunk = Trunk(len(kinds), hidden, fields.integer("vocab_size"), read_tied(fields, False), read_length(fields, True))
    heads = read_heads(fields, hidden)
    count, mtp = read_drafts(fields), _mtp_kinds(fields)
    fields.raw("intermediate_size", "expand", "mamba_expand", "attention_bias", "mamba_proj_bias")
    blocks, width = _blocks(fields, hidden, heads, set(kinds) | (set(mtp) if count else set()))
    drafts = [_joined([blocks[kind] for kind in mtp], hidden)] * count if count else []
    layers = [blocks[kind] for kind in kinds]
    return trunk.blueprint(layers, query_heads=heads.query, intermediate=width, drafts=drafts)


def _joined(blocks: list[Block], hidden: int) -> Block:
    """One MTP layer is made of several blocks."""
    memories = tuple(memory for block in blocks for memory in block.memories)
    return Block(memories, sum((block.weights for block in blocks), draft_glue(hidden)))


def _mtp_kinds(fields: Fields) -> list[str]:
    pattern = _pattern(fields, "mtp_hybrid_override_pattern")
    if pattern is not None:
        return pattern
    given = fields.items("mtp_layers_block_type")
    return ["full", "moe"] if given is None else fields.kinds("mtp_layers_block_type", len(given), _WORDS) or []


FAMILIES = (
    Family("nemotron_h", read, {
        "vocab_size": 131072, "intermediate_size": 21504, "max_position_embeddings": 4096, "num_key_value_heads": 8,
        "head_dim": 128, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
        "conv_kernel": 4, "n_routed_experts": 8, "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    }, ("NemotronHForCausalLM",)),
)  # fmt: skip
