"""Families that state their layers in sections or in short, and options that transformers does not compute."""

from __future__ import annotations

import pytest
from model_configs import kinds

from quire.core.errors import ModelError
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config
from quire.models.shape import ModelShape


def bent(name: str, **changes: object) -> ModelShape:
    return read_config({**catalogue_entry(name).config, **changes}, name)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mpt-7b", {"attn_config": {"alibi": False}}, "alibi is False: transformers computes it as True"),
        ("mpt-7b", {"attn_config": {"qk_ln": True}}, "qk_ln is True"),
        ("mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type is 'multiquery_attention'"),
        ("mpt-7b", {"expansion_ratio": 8}, "expansion_ratio is 8"),
        ("mpt-7b", {"logit_scale": 0.5}, "transformers does not scale logits"),
        ("gpt-neo-1.3b", {"attention_types": [["global", 24]]}, r"attention_types\[0\] is \['global', 24\]"),
        ("gpt-neo-1.3b", {"attention_layers": ["global"] * 23}, "attention_layers has 23 entries for 24 layers"),
        ("gpt-neo-1.3b", {"attention_types": [[["global"], 24]], "attention_layers": ["local"] * 24}, "disagrees"),
        ("falcon-40b", {"num_kv_heads": 7}, "num_attention_heads 128 does not divide by num_kv_heads 7"),
        ("mimo-v2-flash", {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads is 4"),
        ("mimo-v2-flash", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias is True"),
        ("mimo-v2-flash", {"attention_chunk_size": 4096}, "attention_chunk_size is 4096"),
        ("longcat-flash", {"num_layers": 27}, "num_layers 27 and num_hidden_layers 56"),
        ("xglm-564m", {"add_cross_attention": True}, "only decoders without an encoder"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(name: str, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        bent(name, **changes)


def test_gpt_neo_s_layers_are_spelled_out() -> None:
    """Words, and how often they repeat."""
    shape = bent("gpt-neo-1.3b", attention_types=[[["global", "local"], 11], [["local"], 2]])
    assert kinds(shape) == ["full", "window"] * 11 + ["window"] * 2


def test_dbrx_reads_the_same_from_sections_and_without_them() -> None:
    """What a token chooses is found inside a section too."""
    own = {"num_key_value_heads": None, "intermediate_size": None, "moe_num_experts": None, "num_experts_per_tok": None}
    attention = {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000}
    feed = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
    nested = bent("dbrx", **own, attn_config=attention, ffn_config=feed)
    assert nested == bent("dbrx")
    assert nested.experts.per_token == 4


def test_mimo_s_window_counts_the_query_where_its_size_does_not() -> None:
    """`sliding_window_size` is what the published configuration states."""
    shape = bent("mimo-v2-flash", sliding_window=128, sliding_window_size=128, attention_chunk_size=128)
    assert {memory.window for layer in shape.layers for memory in layer.memories if memory.kind == "window"} == {129}
