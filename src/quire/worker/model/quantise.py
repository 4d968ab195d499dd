"""A checkpoint → the same with its matrices in few bits (`--weights`), in Quire's own packed form.

    int8   groups of 32 inputs, a scale in fp16 for each
    int4   groups of 32 inputs, a scale and a minimum in fp16 for each; embedding and head in int8
    fp8    a scale in fp32 for each output; embedding and head stay as they are

Norms, biases, routers and convolutions stay as they are. Numbers are rounded to the nearest code, without calibration.
`models/precision.py` counts the bytes of these forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from quire.core.units import GIB
from quire.models.stored_bits import NO_MATRICES
from quire.worker.model.packed_loading import can_pack, plain_config
from quire.worker.weights.merging import sources_of
from quire.worker.weights.packed import Codes, PackedWeight
from quire.worker.weights.safetensors import read_checkpoint
from quire.worker.weights.write import Advance

GROUP = 32
SHARD_BYTES = 2 * GIB
Pack = Callable[[str, torch.Tensor], PackedWeight]


def quantise_folder(folder: Path, target: Path, kind: Codes, advance: Advance | None = None) -> dict[str, str]:
    """Writes files of weights; returns the file of each tensor."""
    packs, files, held, size = _packs(folder, kind), dict[str, str](), dict[str, torch.Tensor](), 0
    for name, tensor in read_checkpoint(folder, advance):
        made = dict(_tensors(name, tensor, packs))
        if held and size + sum(own.nbytes for own in made.values()) > SHARD_BYTES:
            _save(target, held, files)
            held, size = {}, 0
        held |= made
        size += sum(own.nbytes for own in made.values())
    _save(target, held, files)
    return files


def _tensors(
    name: str, tensor: torch.Tensor, packs: dict[str, tuple[Pack, bool]]
) -> Iterator[tuple[str, torch.Tensor]]:
    if name not in packs:
        yield name, tensor.clone()
        return
    pack, is_transposed = packs[name]
    packed = pack(name, (tensor.mT if is_transposed else tensor).float())
    yield f"{name}.{packed.kind.value}", packed.codes.contiguous()
    yield f"{name}.scales", packed.scales.contiguous()
    if packed.minimums is not None:
        yield f"{name}.minimums", packed.minimums.contiguous()


def _save(target: Path, tensors: dict[str, torch.Tensor], files: dict[str, str]) -> None:
    name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
    save_file(tensors, target / name, {"format": "pt"})
    files |= dict.fromkeys(tensors, name)


def _packs(folder: Path, kind: Codes) -> dict[str, tuple[Pack, bool]]:
    """By the checkpoint's names: how a parameter is packed, and whether it lies transposed."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(plain_config(folder))  # type: ignore[no-untyped-call]
    names = [name for name, _ in read_checkpoint(folder)]
    found: dict[str, tuple[Pack, bool]] = {}
    for source in sources_of(model, names):
        target = source.targets[0]
        if (
            not source.moves_rows
            or NO_MATRICES.search(target)
            or not all(can_pack(model, own) for own in source.targets)
        ):
            continue
        is_outside = ".layers." not in target
        if is_outside and kind is Codes.FP8:
            continue
        pack = PACKS[Codes.INT8 if is_outside else kind]
        module = model.get_submodule(target.rpartition(".")[0])
        is_transposed = source.converter is None and bool(getattr(module, "is_transposed", False))
        found |= {name: (pack, is_transposed) for own in source.names.values() for name in own}
    return found


def to_int8(name: str, weight: torch.Tensor) -> PackedWeight:
    groups = _groups(weight)
    scales = _positive(groups.abs().amax(-1) / 127).half()
    codes = (groups / scales.float()[..., None]).round().clamp(-127, 127).to(torch.int8)
    return PackedWeight(name, Codes.INT8, codes.flatten(-2), scales, columns=groups.shape[-1])


def to_int4(name: str, weight: torch.Tensor) -> PackedWeight:
    if weight.shape[-1] % GROUP:
        return to_int8(name, weight)
    groups = _groups(weight)
    minimums = groups.amin(-1).half()
    scales = _positive((groups.amax(-1) - minimums.float()) / 15).half()
    codes = ((groups - minimums.float()[..., None]) / scales.float()[..., None]).round().clamp(0, 15).flatten(-2)
    nibbles = codes.to(torch.uint8)
    return PackedWeight(name, Codes.INT4, nibbles[..., ::2] | nibbles[..., 1::2] << 4, scales, minimums, columns=GROUP)


def to_fp8(name: str, weight: torch.Tensor) -> PackedWeight:
    scales = _positive(weight.abs().amax(-1, keepdim=True) / 448)
    return PackedWeight(name, Codes.FP8, (weight / scales).to(torch.float8_e4m3fn), scales)


def _groups(weight: torch.Tensor) -> torch.Tensor:
    """(…, out, group, input); one group, where inputs do not divide."""
    width = GROUP if weight.shape[-1] % GROUP == 0 else weight.shape[-1]
    return weight.reshape(*weight.shape[:-1], -1, width)


def _positive(scales: torch.Tensor) -> torch.Tensor:
    """Of groups of zeros too, in fp16."""
    return scales.clamp(min=torch.finfo(torch.float16).tiny)


PACKS: dict[Codes, Pack] = {Codes.INT8: to_int8, Codes.INT4: to_int4, Codes.FP8: to_fp8}
