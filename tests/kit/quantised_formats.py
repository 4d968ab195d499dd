"""Published packing rules, each with what the packed numbers mean. Small groups and blocks, for tiny weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from quantised_folders import Pack, Tensors, is_matrix

GROUP = 32
Packed = tuple[Tensors, torch.Tensor]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True, slots=True)
class FormatCase:
    section: dict[str, Any]
    pack: Callable[[str, torch.Tensor], Packed]
    has_experts: bool = False
    """Whether it packs parameters of three dimensions."""

    def of_matrices(self) -> Pack:
        def pack(key: str, weight: torch.Tensor) -> Packed | None:
            fits = is_matrix(key, weight) and (weight.dim() == 2 or self.has_experts)
            return self.pack(key, weight) if fits else None

        return pack


def spread(scales: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    wide = scales.float().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return wide[..., : shape[-2], : shape[-1]]


def fp8_blocks(key: str, weight: torch.Tensor, rows: int = 32, columns: int = 48) -> Packed:
    """DeepSeek: the last block of columns is cut off."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    blocks = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    scales = blocks.abs().amax((1, 3)) / 448
    wide = spread(scales, rows, columns, weight.shape)
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return {key: codes, f"{key}_scale_inv": scales}, codes.float() * wide


def fp8_tensor(key: str, weight: torch.Tensor) -> Packed:
    """ModelOpt and compressed-tensors; the scale of the activations is there too."""
    scale = (weight.abs().max() / 448).float()
    codes = (weight / scale).to(torch.float8_e4m3fn)
    own = key.removesuffix("weight")
    return {key: codes, f"{key}_scale": scale, f"{own}input_scale": torch.tensor(1.0)}, codes.float() * scale


def fp8_channel(key: str, weight: torch.Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {key: codes, f"{key}_scale": scales}, codes.float() * scales


def int8_channel(key: str, weight: torch.Tensor) -> Packed:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scales.float()).round().clamp(-128, 127).to(torch.int8)
    return {key: codes, f"{key}_scale": scales}, codes.float() * scales.float()


def int8_asymmetric(key: str, weight: torch.Tensor) -> Packed:
    scales = (weight.amax(1, keepdim=True) - weight.amin(1, keepdim=True)) / 255
    zeros = (-128 - weight.amin(1, keepdim=True) / scales).round().to(torch.int8)
    codes = (weight / scales + zeros.float()).round().clamp(-128, 127).to(torch.int8)
    return {key: codes, f"{key}_scale": scales, f"{key}_zero_point": zeros}, (codes.float() - zeros.float()) * scales


def words(codes: torch.Tensor, bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """Several codes of the last dimension to an int32, lowest bits first; `places`: which code comes in each place."""
    each = 32 // bits
    grouped = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % each)).long().unflatten(-1, (-1, each))
    grouped = grouped if places is None else grouped[..., places]
    joined = (grouped << (bits * torch.arange(each))).sum(-1)
    return torch.where(joined >= 1 << 31, joined - (1 << 32), joined).int()


@dataclass(frozen=True, slots=True)
class Grouped:
    """(out, in) unsigned codes; scales and zeros (out, group); the group of each input."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor

    @property
    def meant(self) -> torch.Tensor:
        return (self.codes - self.zeros[:, self.groups]) * self.scales.float()[:, self.groups]


def group(weight: torch.Tensor, bits: int, is_symmetric: bool, is_ordered: bool = True) -> Grouped:
    inputs, most = weight.shape[1], (1 << bits) - 1
    groups = torch.arange(inputs) // GROUP
    if not is_ordered:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    own = [weight[:, groups == number] for number in range(int(groups.max()) + 1)]
    low, high = (torch.stack([find(part) for part in own], 1) for find in (lambda a: a.amin(1), lambda a: a.amax(1)))
    if is_symmetric:
        scales = (2 * torch.maximum(low.abs(), high.abs()) / most).half()
        zeros = torch.full(scales.shape, (most + 1) // 2)
    else:
        scales = ((high.clamp(min=0) - low.clamp(max=0)) / most).half()
        zeros = (-low.clamp(max=0) / scales.float()).round().long().clamp(0, most)
    codes = (weight / scales.float()[:, groups] + zeros[:, groups]).round().long().clamp(0, most)
    return Grouped(codes, scales, zeros, groups)


def gptq(version: int, bits: int, is_symmetric: bool, is_ordered: bool = True) -> Callable[[str, torch.Tensor], Packed]:
    def pack(key: str, weight: torch.Tensor) -> Packed:
        own, found = key.removesuffix(".weight"), group(weight, bits, is_symmetric, is_ordered)
        zeros = (found.zeros - (1 if version == 1 else 0)) % (1 << bits)
        return {
            f"{own}.qweight": words(found.codes, bits).T, f"{own}.qzeros": words(zeros.T, bits),
            f"{own}.scales": found.scales.T, f"{own}.g_idx": found.groups.int(),
        }, found.meant  # fmt: skip

    return pack


def awq(key: str, weight: torch.Tensor) -> Packed:
    own, found, places = key.removesuffix(".weight"), group(weight, 4, is_symmetric=False), (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{own}.qweight": words(found.codes.T, 4, places), f"{own}.qzeros": words(found.zeros.T, 4, places),
        f"{own}.scales": found.scales.T,
    }, found.meant  # fmt: skip


def pack_quantized(bits: int, is_symmetric: bool, is_ordered: bool = True) -> Callable[[str, torch.Tensor], Packed]:
    """Codes and zero points are signed, and stored with the middle added: as the unsigned ones here."""

    def pack(key: str, weight: torch.Tensor) -> Packed:
        found = group(weight, bits, is_symmetric, is_ordered)
        tensors = {f"{key}_packed": words(found.codes, bits), f"{key}_scale": found.scales.bfloat16()}
        tensors[f"{key}_shape"] = torch.tensor(weight.shape)
        if not is_symmetric:
            tensors[f"{key}_zero_point"] = words(found.zeros.T, bits).T
        if not is_ordered:
            tensors[f"{key}_g_idx"] = found.groups.int()
        return tensors, Grouped(found.codes, found.scales.bfloat16(), found.zeros, found.groups).meant

    return pack


def nearest_e2m1(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers[..., None] - E2M1).abs().argmin(-1)


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def _mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nibbles, exponents + 127, meaning."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = torch.log2(groups.abs().amax(-1)).floor() - 2
    codes = nearest_e2m1(groups / torch.exp2(exponents)[..., None]).flatten(-2)
    meant = (E2M1[codes].unflatten(-1, (-1, 32)) * torch.exp2(exponents)[..., None]).flatten(-2)
    return nibbles(codes), (exponents + 127).to(torch.uint8), meant


def mxfp4_blocks(key: str, weight: torch.Tensor) -> Packed:
    """gpt-oss: experts alone."""
    codes, exponents, meant = _mxfp4(weight)
    return {f"{key}_blocks": codes.unflatten(-1, (-1, 16)), f"{key}_scales": exponents}, meant


def mxfp4_packed(key: str, weight: torch.Tensor) -> Packed:
    codes, exponents, meant = _mxfp4(weight)
    return {f"{key}_packed": codes, f"{key}_scale": exponents}, meant


def _nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nibbles, scales, what they are multiplied by, meaning."""
    whole = weight.abs().max() / (6 * 448)
    groups = weight.unflatten(-1, (-1, 16))
    scales = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    each = (scales.float() * whole)[..., None]
    codes = nearest_e2m1(groups / each)
    return nibbles(codes.flatten(-2)), scales, whole, (E2M1[codes] * each).flatten(-2)


def nvfp4_modelopt(key: str, weight: torch.Tensor) -> Packed:
    codes, scales, whole, meant = _nvfp4(weight)
    return {key: codes, f"{key}_scale": scales, f"{key}_scale_2": whole}, meant


def nvfp4_compressed(key: str, weight: torch.Tensor) -> Packed:
    codes, scales, whole, meant = _nvfp4(weight)
    return {f"{key}_packed": codes, f"{key}_scale": scales, f"{key}_global_scale": (1 / whole)[None]}, meant


def _compressed(layout: str, bits: int, sort: str = "int", **weights: Any) -> dict[str, Any]:
    group_0 = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": sort, "symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group_0}}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
FORMATS: dict[str, FormatCase] = {
    "fp8 blocks": FormatCase({"quant_method": "fp8", "weight_block_size": [32, 48]}, fp8_blocks),
    "fp8 per tensor, ModelOpt": FormatCase({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8_tensor),
    "fp8 per tensor, compressed-tensors": FormatCase(_compressed("float-quantized", 8, "float"), fp8_tensor),
    "fp8 per channel, compressed-tensors": FormatCase(_compressed("float-quantized", 8, "float"), fp8_channel),
    "fp8 per channel, FBGEMM": FormatCase({"quant_method": "fbgemm_fp8"}, fp8_channel),
    "int8": FormatCase(_compressed("int-quantized", 8), int8_channel),
    "int8 asymmetric": FormatCase(_compressed("int-quantized", 8, symmetric=False), int8_asymmetric),
    "int8 packed": FormatCase(_compressed("pack-quantized", 8, group_size=GROUP), pack_quantized(8, True)),
    "int4 packed": FormatCase(_compressed("pack-quantized", 4, group_size=GROUP), pack_quantized(4, True)),
    "int4 packed asymmetric": FormatCase(
        _compressed("pack-quantized", 4, group_size=GROUP, symmetric=False), pack_quantized(4, False)
    ),
    "int4 packed act-order": FormatCase(
        _compressed("pack-quantized", 4, group_size=GROUP, actorder="group"), pack_quantized(4, True, is_ordered=False)
    ),
    "AWQ": FormatCase({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}, awq),
    "GPTQ": FormatCase(_GPTQ, gptq(1, 4, True)),
    "GPTQ asymmetric": FormatCase({**_GPTQ, "sym": False}, gptq(1, 4, False)),
    "GPTQ version 2": FormatCase({**_GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, gptq(2, 4, False)),
    "GPTQ act-order": FormatCase({**_GPTQ, "desc_act": True}, gptq(1, 4, True, is_ordered=False)),
    "GPTQ 8 bits": FormatCase({**_GPTQ, "bits": 8}, gptq(1, 8, True)),
    "MXFP4": FormatCase({"quant_method": "mxfp4"}, mxfp4_blocks, has_experts=True),
    "MXFP4, compressed-tensors": FormatCase(_compressed("mxfp4-pack-quantized", 4, "float"), mxfp4_packed),
    "NVFP4, ModelOpt": FormatCase({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4_modelopt),
    "NVFP4, compressed-tensors": FormatCase(_compressed("nvfp4-pack-quantized", 4, "float"), nvfp4_compressed),
}
