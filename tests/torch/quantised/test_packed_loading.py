"""Folders in Quire's own packed form, loaded without being expanded."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from quantised_folders import SHAPES, Tensors, compare, is_matrix, logits, packed_modules, write_pair
from quire.core.errors import ModelError
from quire.worker.model import packed_experts, packed_linear
from quire.worker.model.fused import FusedPart, fuse
from quire.worker.model.model import load
from quire.worker.model.packed_linear import PackedEmbedding, PackedLinear
from quire.worker.weights.packed import Codes, PackedWeight

QUIRE = {"quant_method": "quire"}
GROUP = 16


def pack(kind: Codes, key: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    """By groups of 16 inputs, with minimums for int4."""
    if weight.dim() < 2:
        return None
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    if kind is Codes.INT4:
        scales = (high - low) / 15
        codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15).flatten(-2).to(torch.uint8)
        stored = codes[..., ::2] | codes[..., 1::2] << 4
        meant = codes.unflatten(-1, (-1, GROUP)) * scales[..., None] + low[..., None]
        return {f"{key}.int4": stored, f"{key}.scales": scales, f"{key}.minimums": low}, meant.flatten(-2)
    scales = groups.abs().amax(-1) / (127 if kind is Codes.INT8 else 448)
    codes = groups / scales[..., None]
    stored = (codes.round() if kind is Codes.INT8 else codes).to(kind.stored)
    return {f"{key}.{kind.value}": stored.flatten(-2), f"{key}.scales": scales}, (
        stored.float() * scales[..., None]
    ).flatten(-2)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", [Codes.INT4, Codes.INT8, Codes.FP8])
def test_a_packed_folder_computes_what_its_dequantised_weights_do(name: str, kind: Codes, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, name, lambda key, own: pack(kind, key, own) if is_matrix(key, own) else None, QUIRE)
    model = compare(pair)
    assert {module.packed.kind for module in packed_modules(model)} == {kind}
    dense = {name.rpartition(".")[2] for name, module in model.named_modules() if type(module) is nn.Linear}
    assert dense == {"lm_head", *(("kv_b_proj",) if name == "deepseek_v3" else ())}


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_tied_head_shares_the_packed_embedding(name: str, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, name, partial(pack, Codes.INT8), QUIRE, tie_word_embeddings=True)
    model = compare(pair)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(table, PackedEmbedding)
    assert isinstance(head, PackedLinear)
    assert head.packed.codes.data_ptr() == table.packed.codes.data_ptr()
    model.to("meta")  # as to a device
    assert head.packed.codes is table.packed.codes


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_products_of_the_same_tokens_are_fused(name: str, tmp_path: Path) -> None:
    pair = write_pair(
        tmp_path, name, lambda key, own: pack(Codes.INT4, key, own) if is_matrix(key, own) else None, QUIRE
    )
    model = load(pair.packed, torch.float32)
    expected = logits(model)
    bytes_before = sum(module.packed.bytes for module in packed_modules(model))
    assert fuse(model) == len(model.model.layers) * (2 if name == "llama" else 1)
    assert {type(module.self_attn.q_proj) for module in model.model.layers} == {FusedPart}
    assert sum(module.packed.bytes for module in packed_modules(model)) == bytes_before
    torch.testing.assert_close(logits(model), expected)


def test_weights_of_different_layouts_are_multiplied_separately(tmp_path: Path) -> None:
    def mixed(key: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        kind = Codes.INT8 if "v_proj" in key else Codes.INT4
        return pack(kind, key, weight) if is_matrix(key, weight) else None

    model = compare(write_pair(tmp_path, "llama", mixed, QUIRE))
    expected = logits(model)
    assert fuse(model) == len(model.model.layers)
    assert isinstance(model.model.layers[0].self_attn.q_proj, PackedLinear)
    torch.testing.assert_close(logits(model), expected)


def test_experts_on_a_device_compute_what_they_do_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the device; two experts at a time, some without a token."""
    monkeypatch.setattr(packed_experts, "PART_NUMBERS", 2 * 32 * 16)
    torch.manual_seed(0)
    codes, scales = torch.randint(-127, 128, (5, 32, 16), dtype=torch.int8), torch.rand(5, 32, 1)
    packed = PackedWeight("experts", Codes.INT8, codes, scales)
    for ends in ([3, 3, 7, 8, 8], [0, 0, 0, 0, 8], [8, 8, 8, 8, 8]):
        tokens = torch.randn(8, 16)
        found = packed_experts.multiply_all(tokens, packed, torch.tensor(ends))
        torch.testing.assert_close(found, packed_experts.multiply_each(tokens, packed, torch.tensor(ends)))


@pytest.mark.parametrize("kind", list(Codes))
def test_a_packed_layer_is_compiled_as_one_graph(kind: Codes) -> None:
    stored = torch.randint(0, 100, (32, 16 if kind.has_nibbles else 32), dtype=torch.uint8).view(kind.stored)
    linear = PackedLinear(32, 32, torch.float32)
    linear.hold(PackedWeight("w", kind, stored, torch.rand(32, 2), columns=16))
    tokens = torch.randn(3, 32)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), functional.linear(tokens, linear.weight))


def test_large_weights_are_dequantised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "PART_NUMBERS", 5 * 64)
    packed = PackedWeight(
        "w", Codes.INT8, torch.arange(80 * 64).view(80, 64).to(torch.int8), torch.rand(40, 4) / 1000, rows=2, columns=16
    )
    linear = PackedLinear(80, 64, torch.float32, nn.Parameter(torch.randn(80)))
    linear.hold(packed)
    tokens = torch.randn(2, 3, 64)
    torch.testing.assert_close(linear(tokens), functional.linear(tokens, packed.dequantised(), linear.bias))


def test_missing_and_misshapen_weights_are_refused_by_name(tmp_path: Path) -> None:
    def lacking(key: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        found = pack(Codes.INT8, key, weight) if is_matrix(key, weight) else None
        if found and "layers.1.mlp.experts.2.up_proj" in key:
            return {}, weight
        return found

    pair = write_pair(tmp_path, "qwen3_moe", lacking, QUIRE)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.experts\.gate_up_proj"):
        load(pair.packed, torch.float32)
