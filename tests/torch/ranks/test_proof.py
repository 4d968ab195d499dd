"""A small twin of a model's configuration, whole and in parts: equal logits, or the model is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command import run_text
from quire.core.errors import ModelError
from quire.worker.ranks import rules, skeleton, table
from quire.worker.ranks.proof import prove_split
from split_models import QUICK, SLOW, config_of_type

ROUNDING = 5e-5
"""Of the greatest logit; a wrong split is off by more than a tenth."""


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW)])
@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (1, 2), (2, 2)])
def test_a_model_in_parts_computes_what_it_computes_whole(name: str, ranks: int, stages: int) -> None:
    """On pages of a plan for one, and of plans for parts: so layers keep what those plans say. Red if a layer were cut
    where it may not be, or a sum were missing."""
    proof = prove_split(config_of_type(name), ranks, stages)
    assert proof.error < ROUNDING
    assert (proof.ranks, proof.stages) == (ranks, stages)


@pytest.mark.parametrize(
    ("name", "options", "ranks"),
    [
        ("llama", {"num_key_value_heads": 1}, 2),  # ranks have copies of the only key head
        ("llama", {"num_key_value_heads": 2}, 4),
        ("llama", {"tie_word_embeddings": True}, 2),
        ("llama", {"attention_bias": True, "mlp_bias": True}, 2),  # biases behind sums count once
        ("gpt_bigcode", {"multi_query": False}, 2),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ("falcon", {"multi_query": False, "new_decoder_architecture": False}, 2),
        ("falcon_h1", {"mamba_rms_norm": True}, 2),  # a gated norm over all heads
    ],
)
def test_options_of_a_configuration_are_those_of_its_twin(name: str, options: dict[str, Any], ranks: int) -> None:
    """Red if the twin had the class's defaults: an option may add a norm or a bias."""
    assert prove_split(config_of_type(name, **options), ranks, 1).error < ROUNDING


def _rules() -> dict[tuple[str, Any], str]:
    """Every rule of the split table, with a type that needs it."""
    state_mixers = {
        "BambaMixer": "bamba", "FalconH1Mixer": "falcon_h1", "GraniteMoeHybridMambaLayer": "granitemoehybrid",
        "Mamba2Mixer": "mamba2", "NemotronHMamba2Mixer": "nemotron_h", "Zamba2MambaMixer": "zamba2",
    }  # fmt: skip
    deltas = {
        "Qwen3NextGatedDeltaNet": "qwen3_next", "Qwen3_5GatedDeltaNet": "qwen3_5_text",
        "Qwen3_5MoeGatedDeltaNet": "qwen3_5_moe_text", "OlmoHybridGatedDeltaNet": "olmo_hybrid",
    }  # fmt: skip
    packed = {
        ("", "gate_up_proj"): "phi3",
        ("DbrxAttention", "Wqkv"): "dbrx", ("DbrxExpertGLU", "w1"): "dbrx", ("DbrxExpertGLU", "v1"): "dbrx",
        ("DbrxExpertGLU", "w2"): "dbrx", ("FalconAttention", "query_key_value"): "falcon",
        ("GPT2Attention", "c_attn"): "gpt2", ("GPTBigCodeAttention", "c_attn"): "gpt_bigcode",
        ("GraniteMoeHybridMLP", "input_linear"): "granitemoehybrid",
        ("GraniteMoeSharedMLP", "input_linear"): "granitemoeshared",
        ("GraniteMoeSWAMLP", "input_linear"): "granitemoe_swa", ("JetMoeAttention", "kv_proj"): "jetmoe",
        ("JetMoeMoE", "input_linear"): "jetmoe", ("KimiLinearDeltaAttention", "conv1d"): "kimi_linear",
        ("Lfm2MoeShortConv", "in_proj"): "lfm2_moe", ("Lfm2ShortConv", "in_proj"): "lfm2",
        ("MambaMixer", "in_proj"): "mamba", ("FalconMambaMixer", "in_proj"): "falcon_mamba",
        ("JambaMambaMixer", "in_proj"): "jamba", ("MptAttention", "Wqkv"): "mpt",
        ("Phi3Attention", "qkv_proj"): "phi3", ("Zamba2MLP", "gate_up_proj_adapter_list"): "zamba2",
        ("FalconH1Mixer", "mup_vector"): "falcon_h1",
        **{(mixer, layer): name for mixer, name in state_mixers.items() for layer in ("in_proj", "conv1d")},
        **{(mixer, "conv1d"): name for mixer, name in deltas.items()},
        **{(mixer, "in_proj_qkv"): name for mixer, name in deltas.items() if "3_5" in mixer},
    }  # fmt: skip
    narrow = {
        "BitNetAttention": "bitnet", "BioGptAttention": "biogpt", "BloomAttention": "bloom", "BloomMLP": "bloom",
        "DbrxAttention": "dbrx", "FalconAttention": "falcon", "GPT2Attention": "gpt2",
        "GPTBigCodeAttention": "gpt_bigcode", "GPTJAttention": "gptj", "GPTNeoSelfAttention": "gpt_neo",
        "GPTNeoXAttention": "gpt_neox", "GPTNeoXJapaneseAttention": "gpt_neox_japanese",
        "GPTNeoXJapaneseMLP": "gpt_neox_japanese", "HeliumAttention": "helium", "Lfm2MLP": "lfm2",
        "Lfm2MoeShortConv": "lfm2_moe", "Lfm2ShortConv": "lfm2", "MptAttention": "mpt", "MptMLP": "mpt",
        "OlmoeAttention": "olmoe", "OPTAttention": "opt", "PersimmonAttention": "persimmon",
        "StableLmAttention": "stablelm", "XGLMAttention": "xglm",
    }  # fmt: skip
    others = {
        ("TRANSPOSED", "Conv1D"): "gpt2",
        ("INTERLEAVED", "GptOssExperts"): "gpt_oss", ("APART", "AXK1MoE"): "axk1",
        ("SINGLE", "LongcatFlashExperts.identity_expert"): "longcat_flash",
        ("ROWS_OF_EXPERTS", "DbrxExpertGLU"): "dbrx",
        ("BLOCKS", "JetMoeMoA"): "jetmoe", ("ONCE", "JetMoeMoE"): "jetmoe", ("ONCE", "JetMoeMoA"): "jetmoe",
    }  # fmt: skip
    return {
        **{("PACKED", key): name for key, name in packed.items()},
        **{("NARROW", key): name for key, name in narrow.items()},
        **others,
    }


RULES = _rules()
QUICK_RULES = ("phi3", "gpt2", "gpt_oss", "axk1")
"""Types whose rules every test run takes away; `make soak` takes the others."""


def test_every_rule_of_the_split_table_is_one_that_is_taken_away() -> None:
    """Red if a rule were added that no model is known to need."""
    groups = ("PACKED", "NARROW", "TRANSPOSED", "INTERLEAVED", "APART", "SINGLE", "ROWS_OF_EXPERTS", "BLOCKS", "ONCE")
    assert {(group, member) for group in groups for member in getattr(rules, group)} == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        pytest.param(rule, name, marks=[] if name in QUICK_RULES else pytest.mark.soak, id=f"{name}-{rule[1]}")
        for rule, name in RULES.items()
    ],
)
def test_a_rule_of_the_split_table_that_is_taken_away_is_noticed(
    rule: tuple[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if a proof did not see what a rule is there for: the model would be served with wrong tokens."""
    config = config_of_type(name)
    prove_split(config, 2, 1)
    take_away(monkeypatch, *rule)
    with pytest.raises(ModelError, match=r"For|LMHead"):
        prove_split(config, 2, 1)


def take_away(monkeypatch: pytest.MonkeyPatch, group: str, member: Any) -> None:
    given = getattr(rules, group)
    if isinstance(given, dict):
        monkeypatch.delitem(given, member)
        return
    for module in (table, skeleton):
        if hasattr(module, group):
            monkeypatch.setattr(module, group, given - {member})


@pytest.mark.parametrize("part", ["added", "norms", "first_only"])
def test_what_ranks_compute_together_is_noticed_when_one_place_is_missing(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OLMo-2 has norms over all heads, and biases here. Red if the proof missed a sum, a norm or a doubled bias."""
    whole = table.SplitTable

    def lacking(*fields: Any) -> table.SplitTable:
        names = list(whole.__slots__)
        kept = list(fields)
        place = names.index(part)
        kept[place] = frozenset(sorted(kept[place])[1:])
        return whole(*kept)

    monkeypatch.setattr(table, "SplitTable", lacking)
    with pytest.raises(ModelError, match="computes other logits"):
        prove_split(config_of_type("olmo2", attention_bias=True), 2, 1)


@pytest.mark.parametrize(
    ("name", "options", "ranks", "stages", "says"),
    [
        ("llama", {"hidden_size": 96, "num_attention_heads": 6}, 4, 1, "choose --tensor-parallel 3"),
        ("codegen", {}, 2, 1, "choose --tensor-parallel 1"),
        ("gemma4_text", {}, 1, 2, "choose --pipeline-parallel 1"),  # each layer reads the prompt's embeddings again
        ("longcat_flash", {}, 1, 2, "has no list of 4 layers"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    name: str, options: dict[str, Any], ranks: int, stages: int, says: str
) -> None:
    """Red if such a model were served, or the reason had several lines."""
    with pytest.raises(ModelError, match=says) as refused:
        prove_split(config_of_type(name, **options), ranks, stages)
    assert "\n" not in str(refused.value)


def test_the_command_tells_which_types_can_be_split(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a type, as without ranks. Red if the option were not passed on, or parts were checked of nothing."""
    out, _ = run_text(capsys, "models", "--check", "--only", "olmo2", "--tensor-parallel", "2")
    assert out.splitlines()[-1] == "1 pass, 0 refused by name, 0 fail"
    out, _ = run_text(capsys, "models", "--check", "--only", "codegen", "--tensor-parallel", "2", "--json")
    (finding,) = json.loads(out)
    assert (finding["type"], finding["verdict"]) == ("codegen", "refused")
    _, error = run_text(capsys, "models", "--check", "--only", "olmo2", "--pipeline-parallel", "0", code=2)
    assert "give at least 1 rank and 1 stage" in error
    _, error = run_text(capsys, "models", "--tensor-parallel", "2", code=2)
    assert "add --check" in error
