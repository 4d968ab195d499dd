"""Each family's layers: which kind, how wide, how many."""

from __future__ import annotations

from collections import Counter

import pytest
from model_configs import bytes_of_kind, kinds, llama, memory_bytes, token_bytes

from quire.core.dtypes import DType
from quire.core.memory import Follows
from quire.kinds import Indexed, kind_of
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config, read_model
from quire.models.shape import ModelShape


def bent(name: str, **changes: object) -> ModelShape:
    """A catalogue model with some fields changed; None removes one."""
    config = {**catalogue_entry(name).config, **changes}
    return read_config({key: value for key, value in config.items() if value is not ...}, name)


@pytest.mark.parametrize(
    ("name", "layers", "size"),
    [
        ("llama-3.1-8b", {"full": 32}, 131_072),
        ("llama-2-7b", {"full": 32}, 524_288),
        ("qwen2.5-7b", {"full": 28}, 57_344),
        ("qwen3-30b-a3b", {"full": 48}, 98_304),
        ("mixtral-8x7b", {"full": 32}, 131_072),
        ("phi-4", {"full": 40}, 204_800),
        ("glm-4.5", {"full": 92}, 376_832),
        ("minimax-m2", {"full": 62}, 253_952),
        ("mistral-7b-v0.1", {"window": 32}, 131_072),
        ("gemma-2-9b", {"window": 21, "full": 21}, 344_064),
        ("gemma-3-27b", {"window": 52, "full": 10}, 507_904),
        ("gpt-oss-120b", {"window": 18, "full": 18}, 73_728),
        ("olmo-3-7b", {"window": 24, "full": 8}, 524_288),
        ("command-r7b", {"window": 24, "full": 8}, 131_072),
        ("llama-4-scout", {"chunked": 36, "full": 12}, 196_608),
        ("deepseek-v2-lite", {"latent": 27}, 31_104),
        ("kimi-k2", {"latent": 61}, 70_272),
        ("glm-5", {"indexed": 78}, 78 * (1_152 + 256)),
        ("glm-4.7-flash", {"latent": 47}, 47 * 1_152),
        ("longcat-flash", {"latent": 56}, 56 * 1_152),
        ("minicpm3-4b", {"latent": 62}, 62 * (256 + 32) * 2),
        ("mimo-v2-flash", {"full": 9, "window": 39}, (9 * 4 + 39 * 8) * (192 + 128) * 2),
        ("jetmoe-8b", {"full": 24}, 24 * 2 * 32 * 128 * 2),
        ("dbrx", {"full": 40}, 40 * 2 * 8 * 128 * 2),
        ("bloom-560m", {"full": 24}, 24 * 2 * 1_024 * 2),
        ("mpt-7b", {"full": 32}, 32 * 2 * 4_096 * 2),
        ("falcon-7b", {"full": 32}, 32 * 2 * 64 * 2),
        ("falcon-40b", {"full": 60}, 60 * 2 * 8 * 64 * 2),
        ("gpt-neo-1.3b", {"full": 12, "window": 12}, 24 * 2 * 2_048 * 2),
    ],
)
def test_attention_families_keep_these_bytes_a_token(name: str, layers: dict[str, int], size: int) -> None:
    """K and V of every layer in bf16."""
    shape = read_model(name)
    assert Counter(kinds(shape)) == layers
    assert token_bytes(shape) == size


@pytest.mark.parametrize(
    ("name", "layers", "state", "token"),
    [
        ("qwen3-next-80b-a3b", {"state": 36, "full": 12}, 2_146_304, 2_048),
        ("qwen3.5-27b", {"state": 48, "full": 16}, 48 * 128 * 128 * 4 + (4_096 + 6_144) * 3 * 2, 4_096),
        ("kimi-linear-48b-a3b", {"state": 20, "latent": 7}, 32 * 128 * 128 * 4 + 3 * 4_096 * 3 * 2, 1_152),
        ("bamba-9b", {"state": 29, "full": 3}, 8_192 * 128 * 4 + (8_192 + 256) * 3 * 2, 4_096),
        ("falcon-h1-0.5b", {"full+state": 36}, 1_536 * 128 * 4 + (1_536 + 256) * 3 * 2, 512),
        ("granite-4.0-h-micro", {"state": 36, "full": 4}, 4_096 * 128 * 4 + (4_096 + 256) * 3 * 2, 2_048),
        ("jamba-v0.1", {"state": 28, "full": 4}, 8_192 * 16 * 4 + 8_192 * 3 * 2, 4_096),
        ("nemotron-3-nano", {"state": 23, "full": 6, "none": 23}, 4_096 * 128 * 4 + (4_096 + 2_048) * 3 * 2, 1_024),
        ("olmo-hybrid-7b", {"state": 24, "full": 8}, 30 * 96 * 192 * 4 + 30 * (2 * 96 + 192) * 3 * 2, 15_360),
        ("lfm2-350m", {"state": 10, "full": 6}, 1_024 * 2 * 2, 2_048),
        ("minimax-text-01", {"state": 70, "full": 10}, 64 * 128 * 128 * 4, 4_096),
    ],
)
def test_hybrids_keep_a_state_a_request_and_rows_a_token(
    name: str, layers: dict[str, int], state: int, token: int
) -> None:
    """Recurrent matrices in fp32, one convolution column fewer than the kernel in bf16."""
    shape = read_model(name)
    assert Counter(kinds(shape)) == layers
    memories = [memory for layer in shape.layers for memory in layer.memories]
    assert {memory_bytes(memory) for memory in memories if memory.kind == "state"} == {state}
    assert {memory_bytes(memory) for memory in memories if memory.kind != "state"} == {token}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("mamba2-2.7b", 80 * 64 * 128 * 4 + (5_120 + 256) * 3 * 2),
        ("mamba-codestral-7b", 128 * 64 * 128 * 4 + (8_192 + 2_048) * 3 * 2),
        ("rwkv7-world-0.1b", 12 * 64 * 64 * 4 + 2 * 768 * 2),
    ],
)
def test_models_without_attention_have_one_state_a_layer_and_no_longest_sequence(name: str, state: int) -> None:
    """Their memory does not grow, so nothing limits their length."""
    shape = read_model(name)
    assert set(kinds(shape)) == {"state"}
    assert bytes_of_kind(shape, "state") == len(shape.layers) * state
    assert shape.max_length is None


def test_a_part_s_origin_spells_the_arithmetic_in_the_configuration_s_words() -> None:
    """`--explain` prints it."""
    (memory,) = read_model("qwen3-8b").layers[0].memories
    assert memory.parts[0].origin == "num_key_value_heads 8 × head_dim 128"
    (memory,) = read_config(llama(), "tiny").layers[0].memories
    assert memory.parts[0].origin == "num_key_value_heads 2 × hidden_size 64 ÷ num_attention_heads 4 = 16"


def test_keys_and_values_follow_the_kv_dtype_and_states_the_state_dtype() -> None:
    """Convolutions keep inputs as they are: in the K/V's dtype unless that is quantised."""
    full = read_model("llama-3.1-8b").layers[0].memories[0]
    assert {part.follows for part in full.parts} == {Follows.KV}
    state = read_model("bamba-9b").layers[0].memories[0]
    assert [(part.name, part.follows, part.dtype) for part in state.parts] == [
        ("ssm", Follows.STATE, DType.FP32),
        ("conv_x", Follows.ACTIVATIONS, DType.BF16),
        ("conv_bc", Follows.ACTIVATIONS, DType.BF16),
    ]
    dtypes = [state.parts[1].stored_dtype(kv_dtype, None) for kv_dtype in (DType.BF16, DType.FP32, DType.FP8)]
    assert dtypes == [DType.BF16, DType.FP32, DType.BF16]


def test_a_stated_state_dtype_is_taken() -> None:
    """`mamba_ssm_dtype`, or `mamba_ssm_cache_dtype`, else fp32."""
    shape = bent("nemotron-3-nano", mamba_ssm_cache_dtype="bfloat16")
    assert shape.layers[0].memories[0].parts[0].dtype is DType.BF16
    assert bent("qwen3.5-4b").layers[0].memories[0].parts[0].dtype is DType.FP32


def test_a_sink_beside_a_window_is_a_kind_of_its_own() -> None:
    """`attention_sink_size` keeps the first tokens; the official Mistral 7B has none."""
    (memory,) = bent("mistral-7b-v0.1", attention_sink_size=4).layers[0].memories
    assert (memory.kind, memory.sinks, memory.window) == ("sink", 4, 4096)
    (memory,) = bent("mistral-7b-v0.1").layers[0].memories
    assert (memory.kind, memory.sinks) == ("window", None)


def test_qwen_s_window_counts_only_where_it_is_switched_on() -> None:
    """False: no window at all; true: from layer `max_window_layers` on."""
    off = bent("qwen2.5-7b", use_sliding_window=False, sliding_window=4096, max_window_layers=20)
    assert set(kinds(off)) == {"full"}
    on = bent("qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    assert kinds(on) == ["full"] * 20 + ["window"] * 8


def test_phi_s_window_beyond_its_length_is_full_attention_and_said() -> None:
    """`sliding_window` 262,144 of a model that ends at 131,072."""
    shape = read_model("phi-3.5-mini")
    assert set(kinds(shape)) == {"full"}
    assert any("sliding_window 262,144" in note for note in shape.notes)
    assert set(kinds(read_model("phi-3-mini-4k"))) == {"window"}


@pytest.mark.parametrize(
    ("changes", "full_layers"),
    [
        ({}, [3, 7]),
        ({"no_rope_layer_interval": 2}, [1, 3, 5, 7]),
        ({"no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 1]}, [0]),
        ({"no_rope_layers": []}, [3, 7]),
    ],
)
def test_llama_4_s_layers_without_rotary_positions_are_full(changes: dict[str, object], full_layers: list[int]) -> None:
    """Every fourth layer, unless the configuration lists them."""
    shape = bent("llama-4-scout", num_hidden_layers=8, **changes)
    assert [i for i, kind in enumerate(kinds(shape)) if kind == "full"] == full_layers
    assert {m.chunk for layer in shape.layers for m in layer.memories} == {8192, None}


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("gemma-3-4b", {"layer_types": ..., "num_hidden_layers": 7}, "wwwwwfw"),
        ("gemma-3-4b", {"layer_types": ..., "num_hidden_layers": 4, "sliding_window_pattern": 2}, "wfwf"),
        ("exaone-4.0-32b", {"layer_types": ..., "num_hidden_layers": 5, "sliding_window_pattern": "LLG"}, "wwfww"),
        ("exaone-4.0-1.2b", {"num_hidden_layers": 3}, "fff"),
        ("gemma-2-2b", {"layer_types": ..., "num_hidden_layers": 3}, "wfw"),
        ("olmo-3-7b", {"layer_types": ..., "num_hidden_layers": 4}, "wwwf"),
    ],
)
def test_window_patterns_are_derived_where_layer_types_are_absent(
    name: str, pattern: dict[str, object], expected: str
) -> None:
    """As the family's published class derives them."""
    shape = bent(name, **pattern)
    assert "".join(kind[0] for kind in kinds(shape)) == expected


def test_late_gemma_layers_read_the_last_earlier_layer_of_their_own_kind() -> None:
    """Shared layers keep nothing and have no K/V projections."""
    shape = read_model("gemma-3n-e2b")
    assert [layer.shares_with for layer in shape.layers[18:25]] == [None, None, 18, 18, 18, 18, 19]
    assert all(not layer.memories for layer in shape.layers if layer.shares_with is not None)
    assert shape.layers[20].weight_bytes < shape.layers[17].weight_bytes


def test_gemma_4_s_layers_may_be_listed_one_by_one() -> None:
    """Newer files write the full layers' heads as `per_layer_config`, with padded numbers."""
    override = {"05": {"head_dim": 512, "num_key_value_heads": 4}}
    listed = bent("gemma-4-31b", num_hidden_layers=6, layer_types=..., per_layer_config=override)
    named = bent("gemma-4-31b", num_hidden_layers=6, layer_types=...)
    assert [layer.memories for layer in listed.layers] == [layer.memories for layer in named.layers]


def test_kimi_linear_s_one_based_lists_outrank_its_layer_types() -> None:
    """Layer 1 of `kda_layers` is the first layer; a disagreement is said."""
    lists = {
        "kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
    }  # fmt: skip
    types = ["linear_attention", "full_attention", "linear_attention"]
    shape = bent("kimi-linear-48b-a3b", num_hidden_layers=3, linear_attn_config=lists, layer_types=types)
    assert kinds(shape) == ["state", "state", "latent"]
    assert any("layer_types disagrees" in note for note in shape.notes)


def test_nemotron_s_pattern_and_its_list_say_the_same() -> None:
    """M, *, - and E, or words."""
    words = ["mamba", "attention", "mlp", "moe"]
    spelled = bent("nemotron-3-nano", num_hidden_layers=4, hybrid_override_pattern="M*-E", intermediate_size=100)
    listed = bent(
        "nemotron-3-nano", num_hidden_layers=..., hybrid_override_pattern=..., layers_block_type=words,
        intermediate_size=100,
    )  # fmt: skip
    assert spelled == listed
    assert kinds(spelled) == ["state", "full", "none", "none"]


def test_old_and_new_spellings_of_mamba_2_agree() -> None:
    """state-spaces' own file has no model_type and other names."""
    old = read_config(
        {"d_model": 256, "n_layer": 2, "vocab_size": 500, "ssm_cfg": {"layer": "Mamba2"}, "pad_vocab_size_multiple": 16,
         "attn_layer_idx": [], "attn_cfg": {}, "torch_dtype": "bfloat16"}, "m")  # fmt: skip
    new = read_config(
        {"model_type": "mamba2", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512, "num_heads": 8,
         "head_dim": 64, "n_groups": 1, "state_size": 128, "conv_kernel": 4, "tie_word_embeddings": True,
         "dtype": "bfloat16"}, "m")  # fmt: skip
    assert old == new


def test_draft_layers_are_what_the_model_s_attention_layers_are() -> None:
    """MTP layers: planned only when speculation asks for them."""
    shape = read_model("deepseek-v3.2")
    (draft,) = shape.draft_layers
    assert draft.memories == shape.layers[-1].memories
    assert draft.weight_bytes > shape.layers[-1].weight_bytes
    (draft,) = read_model("nemotron-3-super").draft_layers
    assert [memory.kind for memory in draft.memories] == ["full"]
    (draft,) = read_model("deepseek-v4-pro").draft_layers
    assert [memory.kind for memory in draft.memories] == ["window"]
    assert read_model("kimi-k2").draft_layers == ()


def test_glm_5_s_shared_indexers_keep_nothing() -> None:
    """A layer that uses an earlier layer's selection stores no index key, and is of the same kind."""
    shape = bent("glm-5", num_hidden_layers=4, index_topk_pattern="FSFS")
    assert [memory_bytes(layer.memories[0]) for layer in shape.layers] == [1_408, 1_152, 1_408, 1_152]
    assert {kind_of(layer.memories[0]) for layer in shape.layers} == {Indexed(2048)}


def test_a_nested_text_part_is_read_and_the_vision_tower_mentioned() -> None:
    """Fields of the outside (dtype, tying, quantisation) hold for the text part."""
    config = {
        "model_type": "mistral3",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vision_config": {"x": 1},
    }
    inner = {key: value for key, value in llama(model_type="mistral", sliding_window=None).items() if key != "dtype"}
    shape = read_config({**config, "text_config": inner}, "nested")
    assert shape.notes[0].startswith("text part only")
    assert shape.head_bytes == 0
    assert shape.embedding_bytes == 100 * 64 * 4


def test_the_architecture_stands_in_for_an_absent_model_type() -> None:
    """Older files have `architectures` alone."""
    config = {key: value for key, value in llama().items() if key != "model_type"}
    assert read_config({**config, "architectures": ["LlamaForCausalLM"]}, "old").family == "llama"
