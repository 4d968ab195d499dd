"""GGUF files of every architecture compute what transformers does with the numbers that they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gguf_models import ARCHITECTURES, Q, random_model, write_model
from quire import LLM
from quire.core.dtypes import DType
from quire.fetch.convert import configuration_of, folder_of_gguf
from quire.fetch.folder import in_silence
from quire.models.read import read_config
from quire.models.weight_layout import WeightFormat
from quire.plan.settings import Budget, Settings
from quire.worker.model.linears import lay_out
from quire.worker.model.model import load
from quire.worker.model.packed_linear import Packed
from quire.worker.weights.gguf import open_gguf

FLOATS = (Q.F32,)
SMALL_BLOCKS = (Q.Q8_0, Q.Q4_0, Q.Q5_1, Q.Q4_1, Q.Q5_0, Q.F16, Q.BF16)
K_BLOCKS = (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K)
WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "head_dim": 64}
"""K-quants have blocks of 256."""
TOKENS = torch.randint(3, 96, (1, 72), generator=torch.Generator().manual_seed(1))
"""More than windows and original lengths."""


def converted(folder: Path, name: str, sorts: tuple[Q, ...], **sizes: int) -> tuple[Any, Path]:
    """transformers' model, and the folder that its file became."""
    written = ARCHITECTURES[name]
    model = random_model(written, **sizes)
    write_model(folder / "m.gguf", written, model, sorts)
    return model, folder_of_gguf(folder / "m.gguf", in_silence, folder / "made")


def require_equal_logits(expected: Any, folder: Path) -> Any:
    found = load(folder, torch.float32)
    assert type(found).__name__ == type(expected).__name__
    for model in (found, expected):
        model.set_attn_implementation("eager")
    with torch.inference_mode():
        ours, theirs = found(TOKENS).logits, expected(TOKENS).logits
    assert (ours - theirs).abs().max() < 2e-6 * max(1.0, theirs.abs().max())
    return found


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_of_floats_is_its_model(name: str, tmp_path: Path) -> None:
    model, folder = converted(tmp_path, name, FLOATS)
    require_equal_logits(model, folder)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config == configuration_of(tmp_path / "m.gguf") == open_gguf(tmp_path / "m.gguf").config()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_quantised_file_computes_what_its_numbers_mean_and_takes_what_was_planned(name: str, tmp_path: Path) -> None:
    """One type after another, so that experts and projections of one layer have different ones."""
    model, folder = converted(tmp_path, name, (Q.Q8_0, Q.MXFP4) if name == "gpt-oss" else SMALL_BLOCKS)
    found = require_equal_logits(model, folder)
    assert {module.packed.kind.value for module in packed_modules(found)} >= (
        {"fp4"} if name == "gpt-oss" else {"int8"}
    )
    assert planned_bytes(folder) == pytest.approx(held_bytes(found), rel=0.01)


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_k_quants_compute_what_their_numbers_mean(name: str, tmp_path: Path) -> None:
    model, folder = converted(tmp_path, name, K_BLOCKS, **WIDE)
    found = require_equal_logits(model, folder)
    assert {module.packed.kind.value for module in packed_modules(found)} == {"int4", "int8"}
    assert planned_bytes(folder) == pytest.approx(held_bytes(found), rel=0.01)


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "phi3, long"])
def test_an_engine_generates_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    model, folder = converted(tmp_path, name, (Q.MXFP4,) if name == "gpt-oss" else (Q.Q4_1, Q.Q8_0))
    ids = TOKENS[:, :40]
    with torch.inference_mode():
        expected = model.generate(ids, do_sample=False, max_new_tokens=8, use_cache=False)
    settings, budget = Settings(max_requests=2, batch_tokens=32, max_length=128), Budget(pool_bytes=2 << 20)
    with LLM(folder, settings=settings, budget=budget, device="cpu") as llm:
        (answer,) = llm.generate([ids[0].tolist()], max_tokens=8)
    assert list(answer.token_ids) == expected[0, 40:].tolist()


def packed_modules(model: Any) -> list[Packed]:
    return [module for module in model.modules() if isinstance(module, Packed)]


def planned_bytes(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    shape = read_config(config, "m", weight_format=WeightFormat(DType.FP32, on_cpu=True))
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    return layers + shape.embedding_bytes + shape.head_bytes


def held_bytes(model: Any) -> int:
    """Once it is laid out; what is tied once."""
    lay_out(model)
    tensors = [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if name.endswith("panels"))]
    tensors += [tensor for module in packed_modules(model) for tensor in module.buffers()]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
