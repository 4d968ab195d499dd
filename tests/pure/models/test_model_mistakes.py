"""Every mistake in a configuration gets one line that names the field, its value and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_configs import llama

from quire.core.errors import ModelError
from quire.models.catalogue import catalogue_entry, catalogue_names
from quire.models.read import read_config, read_model


def without(config: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key != name}


def bent(name: str, **changes: object) -> dict[str, object]:
    return {**catalogue_entry(name).config, **changes}


def complaint(config: dict[str, object]) -> str:
    with pytest.raises(ModelError) as caught:
        read_config(config, "bad")
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", [0, -1, 1.5, "32", True, [32], {}, 10**30])
@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"])
def test_sizes_must_be_whole_positive_numbers(name: str, value: object) -> None:
    """No string, no fraction, no flag, nothing below one and nothing absurd."""
    assert complaint(llama(**{name: value})).startswith(f"{name} is ")


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_missing_field_that_has_no_default_is_named(name: str) -> None:
    """Never a guess about what memory depends on."""
    assert complaint(without(llama(), name)).startswith(f"{name} is missing")


@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "max_position_embeddings"])
def test_a_missing_field_with_a_documented_default_takes_it_and_says_so(name: str) -> None:
    """The family's published class is the only source of defaults."""
    shape = read_config(without(llama(), name), "a")
    assert any(note.startswith(f"{name} absent: llama's default") for note in shape.notes)


def test_model_max_length_stands_in_for_max_position_embeddings() -> None:
    """Kimi-Linear writes it so."""
    config = without(llama(model_max_length=777), "max_position_embeddings")
    assert read_config(config, "a").max_length == 777


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (llama(num_key_value_heads=3), "num_attention_heads 4 does not divide by num_key_value_heads 3"),
        (llama(num_attention_heads=3, num_key_value_heads=3), "hidden_size 64 does not divide by num_attention_heads"),
        (llama(layer_types=["full_attention"]), "layer_types has 1 entries for 2 layers"),
        (llama(layer_types=["full_attention", "magic"]), r"layer_types[1] is 'magic'"),
        (llama(layer_types="full"), "layer_types is 'full': it must be a list"),
        (llama(attention_bias="yes"), "attention_bias is 'yes': it must be true or false"),
        (llama(dtype="float7"), "float7"),
        (llama(dtype=16), "dtype is 16: it must be a string"),
        (llama(quantization_config=4), "quantization_config is 4"),
        (llama(quantization_config={"quant_method": "awq", "bits": 0}), "quantised by awq with 0 bits"),
        (
            llama(quantization_config={"quant_method": "quire", "stored_bits": {"matrices": [8, 1]}}),
            "quantization_config.stored_bits.matrices is [8, 1]: it must be four numbers",
        ),
        (llama(model_type="lama"), "model_type is 'lama': no such family (near to it are llama"),
        (without(llama(), "model_type"), "model_type is missing"),
        (llama(sliding_window=0), "sliding_window is 0"),
        (llama(sliding_window=4096), "sliding_window is 4096"),
        (bent("mistral-7b-v0.1", sliding_window=0), "sliding_window is 0: it must be a whole number of at least 1, or"),
        (bent("mistral-7b-v0.1", sliding_window=-4), "sliding_window is -4"),
        (bent("gemma-3-1b", sliding_window=None), "sliding_window is None: 22 layers have a window"),
        (bent("exaone-4.0-32b", layer_types=None, sliding_window_pattern="LXG"), "sliding_window_pattern is 'LXG'"),
        (bent("llama-4-scout", attention_chunk_size=0), "attention_chunk_size is 0"),
        (bent("llama-4-scout", no_rope_layers=[2] * 48), "no_rope_layers[0] is 2"),
        (bent("gemma-3n-e2b", num_kv_shared_layers=30), "num_kv_shared_layers is 30: at most 29 of 30"),
        (bent("gemma-3-1b", use_bidirectional_attention=True), "use_bidirectional_attention is True"),
        (bent("gemma-4-31b", per_layer_config={"60": {"head_dim": 1}}), "per_layer_config.60"),
        (bent("deepseek-v3.2", q_lora_rank=None), "q_lora_rank is missing"),
        (bent("deepseek-v4-pro", layer_types=None), "compress_ratios is missing"),
        (bent("deepseek-v4-pro", layer_types=None, compress_ratios=[4] * 60), "compress_ratios has 60 entries for 61"),
        (bent("deepseek-v4-pro", qk_rope_head_dim=512), "qk_rope_head_dim 512 leaves nothing of head_dim 512"),
        (bent("glm-5", index_topk_pattern="FX"), "index_topk_pattern is 'FX'"),
        (bent("glm-5", index_topk_freq=4, index_skip_topk_offset=0), "layer 0 has no indexer and no earlier layer"),
        (bent("kimi-linear-48b-a3b", layer_types=None), "linear_attn_config is missing"),
        (bent("kimi-linear-48b-a3b", linear_attn_config={"kda_layers": [0, 1], "full_attn_layers": [2]}),
         "linear_attn_config.kda_layers[0] is 0"),
        (bent("kimi-linear-48b-a3b", linear_attn_config={"kda_layers": [1, 2], "full_attn_layers": [2]}),
         "must name each of layers 1 to 27 once"),
        (bent("qwen3.5-4b", linear_num_value_heads=24), "linear_num_value_heads 24 does not divide"),
        (bent("bamba-9b", layer_types=None), "attn_layer_indices is missing"),
        (bent("bamba-9b", mamba_d_head=32), "mamba_n_heads 128 × mamba_d_head 32 is 4,096"),
        (bent("bamba-9b", mamba_n_groups=3), "mamba_n_heads 128 does not divide by mamba_n_groups 3"),
        (bent("granite-4.0-h-micro", layer_types=None), "layer_types is missing"),
        (bent("granite-4.0-h-micro", num_key_value_heads=None), "num_key_value_heads is missing"),
        (bent("jamba-v0.1", attn_layer_period=4), "layer_types disagrees with attn_layer_period"),
        (bent("nemotron-3-nano", hybrid_override_pattern="MX"), "hybrid_override_pattern is 'MX'"),
        (bent("nemotron-3-nano", hybrid_override_pattern="M*"), "hybrid_override_pattern has 2 entries for 52 layers"),
        (bent("nemotron-3-nano", hybrid_override_pattern=None), "hybrid_override_pattern is missing"),
        (bent("nemotron-3-nano", mamba_ssm_cache_dtype="float9"), "float9"),
        (bent("minimax-text-01", layer_types=None), "attn_type_list is missing"),
        (bent("minimax-text-01", attn_type_list=[2] * 80), "attn_type_list[0] is 2"),
        (bent("minimax-text-01", attn_type_list=[1] * 80), "it disagrees with layer_types"),
        (bent("minimax-m2", attn_type_list=[0] * 62), "attn_type_list[0] is 0"),
        (bent("mamba2-2.7b", num_heads=81), "num_heads 81 × head_dim 64 is 5,184"),
        (bent("rwkv7-world-0.1b", num_heads=13), "num_heads is 13"),
        (bent("lfm2-350m", layer_types=None), "layer_types is missing"),
        (bent("lfm2-350m", conv_L_cache=1), "conv_L_cache is 1"),
        (bent("qwen3-next-80b-a3b", linear_conv_kernel_dim=1), "linear_conv_kernel_dim is 1"),
        (bent("kimi-linear-48b-a3b", linear_conv_kernel_dim=1), "linear_conv_kernel_dim is 1"),
        (bent("mamba2-2.7b", conv_kernel=1), "conv_kernel is 1"),
        (bent("bamba-9b", mamba_d_conv=1), "mamba_d_conv is 1"),
        (bent("jamba-v0.1", mamba_d_conv=1), "mamba_d_conv is 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_value_and_the_fix(config: dict[str, object], words: str) -> None:
    """One line each, a ModelError, never a traceback."""
    message = complaint(config)
    assert words in message
    assert ": " in message


def outcome(config: dict[str, object]) -> str:
    """What reading says: a ModelError's words or nothing; any other exception is the test's failure."""
    try:
        read_config(config, "junk")
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("junk", [None, "x", -1, 0, 1.5, [], {}, True, 10**30, [None], {"a": 1}, "auto"])
def test_junk_in_any_field_of_any_model_never_becomes_a_traceback(junk: object) -> None:
    """Read, or refused with one line."""
    seen = set()
    for name in catalogue_names():
        entry = catalogue_entry(name)
        if entry.family in seen:
            continue
        seen.add(entry.family)
        for field in entry.config:
            assert "\n" not in outcome({**entry.config, field: junk})


def test_a_nested_field_is_named_with_its_path() -> None:
    """So that it can be found."""
    config = bent("kimi-linear-48b-a3b", linear_attn_config={"kda_layers": "all", "full_attn_layers": []})
    assert complaint(config).startswith("linear_attn_config.kda_layers is 'all'")


SPEAKS_OF_MEMORY = [
    "big_cache", "wide_window", "sliding_size", "chunk_len", "num_kv", "key_value_rank", "state_width", "ssm_width",
    "mamba_width", "conv_width", "latent_width", "my_lora_rank", "attn_rank", "attention_rank", "layer_type_map",
    "block_type_map", "my_pattern", "index_width", "compress_by", "my_head_dim", "more_heads", "first_sinks",
    "shared_by", "mtp_depth", "nextn_depth", "linear_width", "recurrent_width", "per_layer_sizes",
]  # fmt: skip


@pytest.mark.parametrize("value", [4, [1, 2], {"a": 1}, "yes", True])
@pytest.mark.parametrize("name", SPEAKS_OF_MEMORY)
def test_an_unknown_field_that_speaks_of_memory_is_refused_by_name(name: str, value: object) -> None:
    """`--ignore-field` is the way past it."""
    message = complaint(llama(**{name: value}))
    assert message.startswith(f"{name} is ")
    assert f"--ignore-field {name}" in message
    assert read_config(llama(**{name: value}), "a", ignore_fields=[name]) == read_config(llama(), "a")


@pytest.mark.parametrize(
    "extra",
    [
        {"attention_dropout": 0.1, "use_cache": True, "pretraining_tp": 1, "cache_implementation": "hybrid"},
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256},
        {"rope_scaling": {"type": "yarn"}, "rope_parameters": {"x": 1}, "rope_local_base_freq": 10000},
        {"max_window_layers": 28, "use_sliding_window": False, "sliding_window": None, "output_attentions": False},
        {"_attention_note": "a comment", "_window": 4},
        {"brand_new_idea": 7, "num_kv_shared_layers": 0, "pruned_heads": {}, "full_attn_mod": 1},
    ],
)
def test_harmless_fields_pass(extra: dict[str, object]) -> None:
    """Known neutral names, switched-off features, comments, and whatever does not speak of memory."""
    assert read_config(llama(**extra), "a") == read_config(llama(), "a")


def test_ignoring_a_field_that_is_read_leaves_it_out() -> None:
    """The same switch works for what we do know."""
    config = bent("mistral-7b-v0.1", attention_sink_size=4)
    shape = read_config(config, "a", ignore_fields={"attention_sink_size"})
    assert shape.layers[0].memories[0].kind == "window"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "is an object of fields"),
        ("\"x\"", "is an object of fields"),
        ("{\"model_type\": \"llama\"}", "num_hidden_layers is missing"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    """Torn, empty or of another form."""
    file = tmp_path / "model.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=words):
        read_model(str(file))


def test_binary_junk_is_refused(tmp_path: Path) -> None:
    """Not text at all."""
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ModelError, match="is not JSON"):
        read_model(str(file))


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    """The message says what a folder must hold."""
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model(str(tmp_path))
