"""The numbers of the memory page that concern models."""

from __future__ import annotations

from collections import Counter

import pytest
from model_configs import bytes_of_kind, kinds, memory_bytes, token_bytes

from quire.core.dtypes import DType
from quire.models.read import read_config, read_model


def test_gemma_4_31b_keeps_901120_bytes_a_token_and_grows_by_81920_beyond_its_window() -> None:
    """50 window layers of 16 × 256 and 10 full layers of 4 × 512; one K/V projection still stores both."""
    shape = read_model("gemma-4-31b")
    assert Counter(kinds(shape)) == {"window": 50, "full": 10}
    assert token_bytes(shape) == 901_120
    assert bytes_of_kind(shape, "full") == 81_920
    assert {memory.window for layer in shape.layers for memory in layer.memories} == {1024, None}


def test_deepseek_v32_keeps_48068_bytes_a_token_in_fp8_and_40016_without_its_indexer() -> None:
    """61 layers of 656 B latent and 132 B index."""
    shape = read_model("deepseek-v3.2")
    assert token_bytes(shape, DType.FP8) == 48_068
    parts = [part for layer in shape.layers for memory in layer.memories for part in memory.parts]
    assert sum(part.bytes(DType.FP8, None) for part in parts if part.name != "index") == 40_016
    assert {part.bytes(DType.FP8, None) for part in parts if part.name == "index"} == {132}


def test_an_index_follows_the_dtype_of_latents_and_a_token_of_deepseek_v32_has_85888_bytes_in_bf16() -> None:
    """transformers computes the index without quantising it: 128 numbers of 2 bytes, not 132 bytes, in 61 layers."""
    shape = read_model("deepseek-v3.2")
    assert Counter(kinds(shape)) == {"indexed": 61}
    assert token_bytes(shape) == 61 * (1_152 + 256) == 85_888
    assert {memory.number("top_tokens") for layer in shape.layers for memory in layer.memories} == {2048}


@pytest.mark.parametrize(("kv", "size"), [(DType.BF16, 1_152), (DType.FP8, 656)])
def test_a_deepseek_latent_row_is_1152_bytes_in_bf16_and_656_in_fp8(kv: DType, size: int) -> None:
    """512 numbers (with four fp32 scales once they are 8 bits wide) and 64 rotary ones that stay in bf16."""
    (memory,) = read_model("deepseek-v3").layers[0].memories
    assert memory_bytes(memory, kv) == size
    assert all(part.replicated and part.heads == 1 for part in memory.parts)


def test_qwen35_4b_has_a_state_of_2146304_bytes_beside_4096_bytes_a_token() -> None:
    """24 delta layers and 8 full ones."""
    shape = read_model("qwen3.5-4b")
    assert Counter(kinds(shape)) == {"state": 24, "full": 8}
    assert bytes_of_kind(shape, "state") == 24 * 2_146_304
    assert bytes_of_kind(shape, "full") == 8 * 4_096


@pytest.mark.parametrize(("kv", "row"), [(DType.BF16, 1_024), (DType.FP8, 584)])
def test_deepseek_v4_flash_has_a_window_everywhere_and_folded_histories_behind_it(kv: DType, row: int) -> None:
    """43 layers: 2 with the window only, 21 folding 4 tokens (indexed, overlapping), 20 folding 128."""
    shape = read_model("deepseek-v4-flash")
    assert [len(layer.memories) for layer in shape.layers[:4]] == [1, 1, 3, 3]
    nearby, four, waiting = shape.layers[2].memories
    assert (nearby.window, memory_bytes(nearby, kv)) == (128, row)
    assert (four.tokens_per_state, memory_bytes(four, kv)) == (4, row + 132)
    assert (waiting.window, memory_bytes(waiting, kv), waiting.purpose) == (8, 8_192 + 2_048, "compressor")
    _, heavy, waiting = shape.layers[3].memories
    assert (heavy.tokens_per_state, memory_bytes(heavy, kv)) == (128, row)
    assert (waiting.window, memory_bytes(waiting, kv)) == (128, 4_096)
    folds = Counter(m.tokens_per_state for layer in shape.layers for m in layer.memories if m.kind == "latent")
    assert folds == {4: 21, 128: 20}


def test_both_spellings_of_deepseek_v4_s_layers_give_the_same_shape() -> None:
    """Old configurations list ratios, one more for the MTP layer; new ones name layer types."""
    base = {
        "model_type": "deepseek_v4", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2,
        "head_dim": 32, "qk_rope_head_dim": 8, "sliding_window": 16, "num_nextn_predict_layers": 1, "dtype": "bfloat16",
    }  # fmt: skip
    words = ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"]
    old = read_config({**base, "compress_ratios": [128, 4, 0, 0]}, "v4")
    new = read_config({**base, "layer_types": words}, "v4")
    assert old == new
    assert [len(layer.memories) for layer in old.layers] == [3, 3, 1]
    assert [len(layer.memories) for layer in old.draft_layers] == [1]
