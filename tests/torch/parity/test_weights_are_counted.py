"""Every family's reader counts the weights of the model that transformers builds, to the last one, and what Quire lays
out anew when it loads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from command import run_json
from quire.build import machine
from quire.build.machine import Machine
from quire.build.plan import plan_checkpoint
from quire.core.dtypes import DType
from quire.core.units import GIB
from quire.models import weight_layout
from quire.models.families import dense, older, sparse
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.options.run import RunOptions
from quire.plan.settings import Settings
from quire.planner.document import document
from quire.worker.model.linears import lay_out
from quire.worker.model.model import build
from quire.worker.support.tiny import tiny_config

SMOLLM2 = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 2, "vocab_size": 49152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
"""With 2 of its 30 layers."""
LAID_OUT = [family.model_type for family in (*dense.FAMILIES, *sparse.FAMILIES)]
LAID_OUT += [
    "deepseek_v32",
    "glm_moe_dsa",
    "llama",
    "gemma3_text",
    "deepseek_v3",
    "bamba",
    "qwen3_next",
    "lfm2",
    "jamba",
    "mamba2",
    "falcon_h1",
]

COUNTED = [family.model_type for family in (*dense.FAMILIES, *older.FAMILIES, *sparse.FAMILIES)]
COUNTED += [
    *("glm4_moe_lite", "axk1", "youtu", "minicpm3", "mimo_v2_flash", "olmo_hybrid", "internlm3"),
    *("recurrent_gemma", "zamba2"),
]
"""Types whose tiny models are weighed."""

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("opt", {"word_embed_proj_dim": 32}),
    ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("opt", {"do_layer_norm_before": False, "enable_bias": False}),
    ("laguna", {"num_attention_heads_per_layer": [4, 8, 2, 6]}),
    ("laguna", {"gating": "per-element", "attention_bias": True}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_n_groups": 2}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("falcon", {"parallel_attn": False, "multi_query": False, "num_kv_heads": 4}),
    ("zamba2", {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "add_bias_linear": True}),
    ("falcon_h1", {"mamba_proj_bias": True, "mamba_conv_bias": False, "projectors_bias": True, "mlp_bias": True}),
]
"""Configurations that say otherwise than their class's defaults."""


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_tiny_model_with_other_options_weighs_what_its_configuration_says(name: str, options: dict[str, Any]) -> None:
    config = type(tiny_config(name))(**{**tiny_config(name).to_dict(), **options})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = {id(tensor): tensor.numel() for tensor in model.state_dict(keep_vars=True).values()}
    shape = read_config({**json.loads(config.to_json_string()), "dtype": "float32"}, name)
    assert _bytes(shape) == 4 * sum(held.values())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", COUNTED)
def test_a_tiny_model_weighs_what_its_configuration_says(name: str) -> None:
    """What a checkpoint would hold; tied tensors once."""
    config = tiny_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = {id(tensor): tensor.numel() for tensor in model.state_dict(keep_vars=True).values()}
    shape = read_config({**json.loads(config.to_json_string()), "dtype": "float32"}, name)
    assert _bytes(shape) == 4 * sum(held.values())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(LAID_OUT)))
def test_a_tiny_model_takes_what_was_counted_once_it_is_laid_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy of a tied head included. Tiny weights have panels here."""
    monkeypatch.setattr(weight_layout, "PANEL_OUTPUTS", 24)
    config = tiny_config(name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    lay_out(model)
    shape = read_config(json.loads(config.to_json_string()), name, weight_format=WeightFormat(DType.FP32, on_cpu=True))
    assert _bytes(shape) == _allocated(model)


def test_plan_boot_and_memory_have_one_figure_for_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2's shape, from a checkpoint in bf16, on a machine without an accelerator."""
    monkeypatch.setattr(machine, "_accelerator", lambda: None)
    monkeypatch.setattr(machine, "_main_memory", lambda: Machine("a machine", 3 * GIB, 0.5, is_accelerator=False))
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    planned = run_json(capsys, str(tmp_path), "--max-length", "2k")
    options = RunOptions(device="cpu")
    booted = plan_checkpoint(tmp_path, Settings(max_length=2048, kv_dtype=DType.FP32), None, options)
    model = build(AutoConfig.from_pretrained(tmp_path), torch.float32)
    lay_out(model)
    assert _weights(planned["ledger"]) == _weights(document(booted)["ledger"]) == _allocated(model)
    assert planned["fingerprint"] == document(booted)["fingerprint"]
    together = run_json(capsys, str(tmp_path), "--max-length", "2k", "--draft-model", str(tmp_path))
    settings = Settings(max_length=2048, kv_dtype=DType.FP32, speculative_tokens=4)
    drafted = plan_checkpoint(tmp_path, settings, None, replace(options, draft_model=tmp_path))
    assert _weights(together["ledger"]) == _weights(document(drafted)["ledger"]) == 2 * _allocated(model)
    halved = run_json(capsys, str(tmp_path), "--max-length", "2k", "--dtype", "bf16")
    copied = 4 * 49152 * 576  # the head's panels
    assert 2 * _weights(halved["ledger"]) == _weights(planned["ledger"]) - copied


def _weights(ledger: Any) -> int:
    (line,) = [line for line in ledger if line["name"] == "weights"]
    return int(line["bytes"])


def _bytes(shape: ModelShape) -> int:
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    return layers + shape.embedding_bytes + shape.head_bytes


def _allocated(model: Any) -> int:
    tensors = [*model.state_dict(keep_vars=True).values()]
    tensors += [buffer for name, buffer in model.named_buffers() if name.endswith("panels")]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
