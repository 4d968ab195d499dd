"""Weights counted from the configuration alone."""

from __future__ import annotations

import pytest
from model_configs import llama, weight_bytes

from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config, read_model

# Counted by building each model without memory for its tensors (transformers 5.22 on the meta device).
PARAMETERS = {
    "meta-llama-3.1-8b": 8_030_261_248,
    "meta-llama-3.1-405b": 405_853_388_800,
    "llama-2-13b": 13_015_864_320,
    "llama-4-scout-17b-16e-instruct": 107_769_861_120,
    "llama-4-maverick-17b-128e-instruct": 400_711_848_960,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-27b": 26_895_998_464,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3n-e4b": 6_835_235_568,
    "gemma-4-31b": 30_697_345_280,
    "phi-4": 14_659_507_200,
    "olmo-3-7b": 7_298_011_136,
    "exaone-4.0-1.2b": 1_279_391_488,
    "c4ai-command-r7b-12-2024": 8_028_033_024,
    "smollm3-3b": 3_075_098_624,
    "deepseek-v2": 235_741_434_880,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "glm-4.5": 352_797_829_024,
    "glm-5": 743_911_218_432,
    "minimax-text-01": 456_089_655_296,
    "bamba-9b": 9_780_235_392,
    "falcon-h1-34b": 33_453_293_312,
    "granite-4.0-h-tiny": 6_939_037_248,
    "jamba-1.5-large": 398_555_145_696,
    "nvidia-nemotron-3-nano-30b-a3b-bf16": 31_577_940_288,
    "mamba2-2.7b": 2_702_599_680,
    "lfm2-1.2b": 1_170_340_608,
    "glm-4.7-flash": 29_943_393_920,
    "a.x-k1": 518_983_063_808,
    "minicpm3-4b": 4_073_875_968,
    "youtu-llm-2b": 1_961_560_064,
    "mimo-v2-flash": 308_778_780_864,
    "internlm3-8b-instruct": 8_804_241_408,
    "iquest-coder-v1-40b-instruct": 39_794_283_520,
    "olmo-hybrid-7b": 7_430_870_688,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "bloom": 176_247_271_424,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neo-1.3b": 1_315_575_808,
    "mpt-7b": 6_649_286_656,
    "xglm-564m": 564_463_616,
    "dbrx-instruct": 131_596_523_520,
    "jetmoe-8b": 8_522_237_952,
    "rwkv7-world-1.5b": 1_527_404_544,  # its authors' table
    "rwkv7-world-0.4b": 450_767_872,  # likewise
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_counted_to_the_last_one(name: str) -> None:
    """Two bytes each in bf16; embeddings, norms, routers and biases included."""
    assert weight_bytes(read_model(name)) == 2 * PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("gpt-oss-20b", 13.76),
        ("gpt-oss-120b", 65.25),
        ("deepseek-v3", 673.2),
        ("kimi-k2.5", 594.2),
        ("minimax-m2", 230.0),
        ("gemma-4-31b-it-nvfp4", 19.3),
    ],
)
def test_quantised_checkpoints_weigh_what_was_published(name: str, gigabytes: float) -> None:
    """Only matrices shrink; in mxfp4 and int4 checkpoints the routed experts alone."""
    assert weight_bytes(read_model(name)) / 1e9 == pytest.approx(gigabytes, rel=2e-3)


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 48 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, 4.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}},
         4.5),
        ({"quant_method": "mxfp4"}, 16),
    ],
)  # fmt: skip
def test_each_quantisation_spends_its_bits_on_the_matrices(quantisation: dict[str, object], bits: float) -> None:
    """Scales included; a dense model has no experts, so mxfp4 changes nothing."""
    plain, small = read_config(llama(), "a"), read_config(llama(quantization_config=quantisation), "a")
    assert small.layers[0].weight_bytes == pytest.approx(plain.layers[0].weight_bytes * bits / 16, abs=1)
    assert small.layers[0].replicated_weight_bytes == plain.layers[0].replicated_weight_bytes
    assert (small.embedding_bytes, small.head_bytes) == (plain.embedding_bytes, plain.head_bytes)


def test_a_quantisation_that_states_no_bits_is_counted_at_the_dtype_and_said() -> None:
    """Nothing is assumed about a checkpoint."""
    shape = read_config(llama(quantization_config={"quant_method": "compressed-tensors"}), "a")
    assert weight_bytes(shape) == weight_bytes(read_config(llama(), "a"))
    assert any("compressed-tensors" in note and "upper bound" in note for note in shape.notes)


@pytest.mark.parametrize("stated", [{"num_bits": 8, "type": "float"}, "static"])
def test_a_calibrated_kv_cache_is_a_note_and_changes_nothing(stated: object) -> None:
    """The KV dtype stays the planner's choice."""
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": stated}
    shape = read_config(llama(quantization_config=scheme), "a")
    assert any("8-bit KV cache" in note and "--kv-dtype fp8" in note for note in shape.notes)
    assert shape.layers[0].memories == read_config(llama(), "a").layers[0].memories


def test_tied_embeddings_have_no_head() -> None:
    """The head is the embedding."""
    assert read_config(llama(tie_word_embeddings=True), "a").head_bytes == 0
    assert read_config(llama(), "a").head_bytes == 100 * 64 * 2


def test_norms_routers_and_latent_projections_are_on_every_rank() -> None:
    """The rest is divided."""
    dense = read_config(llama(), "a").layers[0]
    assert dense.replicated_weight_bytes == 2 * 64 * 2
    config = {**catalogue_entry("deepseek-v3").config, "quantization_config": None}
    layer = read_config(config, "v3").layers[0]
    assert layer.replicated_weight_bytes == 2 * (7168 * (1536 + 576) + 1536 + 512 + 2 * 7168)


def test_the_dtype_decides_the_bytes_and_its_absence_is_said() -> None:
    """bf16 unless stated."""
    wide = read_config(llama(dtype="float32"), "a")
    silent = read_config({key: value for key, value in llama().items() if key != "dtype"}, "a")
    assert weight_bytes(wide) == 2 * weight_bytes(silent)
    assert "dtype absent: weights counted in bf16" in silent.notes
