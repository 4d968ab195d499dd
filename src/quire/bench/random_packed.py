"""Models whose matrices are random codes. They are never held in floats, so any model that fits packed can be made.

    transformers' model, without memory ──▶ modules for packed weights ──▶ memory for the rest ──▶ codes and scales

`int8`, `int4` and `fp8` as `--weights` makes them; `mxfp4` packs experts alone, as gpt-oss ships them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from quire.models.stored_bits import NO_MATRICES
from quire.worker.model.packed_loading import can_pack, place_module
from quire.worker.weights.packed import Codes, PackedWeight

MXFP4 = "mxfp4"
GROUP = 32
SPREAD = 0.02
"""About the standard deviation of the weights, as transformers draws them."""
Draw = Callable[[tuple[int, ...], torch.device], PackedWeight]


def pack_at_random(model: Any, form: str, device: torch.device) -> Any:
    """`model`: on the meta device, and returned on `device`."""
    draws = {name: draw for name, _ in model.named_parameters() if (draw := _draw_of(name, form)) is not None}
    placed = {name: place_module(model, name)[0] for name in draws if can_pack(model, name)}
    for head, table in list(model.all_tied_weights_keys.items()):
        if table in placed:
            del model.all_tied_weights_keys[head]
            place_module(model, head)[0].share(placed[table])
    _give_memory(model, device)
    for name, module in placed.items():
        module.hold(draws[name](module.shape, device))
    return model


def _give_memory(model: Any, device: torch.device) -> None:
    """To all that is not packed, with the numbers that transformers draws."""
    model.to_empty(device=device)
    for module in model.modules():
        module._is_hf_initialized = False
    model.initialize_weights()
    if model.all_tied_weights_keys:
        model.tie_weights()


def _draw_of(name: str, form: str) -> Draw | None:
    """None: it stays as it is."""
    if form == MXFP4:
        return draw_mxfp4 if ".experts." in name and not name.endswith("bias") else None
    if NO_MATRICES.search(name) or (".layers." not in name and form == "fp8"):
        return None
    return _int8 if ".layers." not in name else DRAWS[form]


def _int8(shape: tuple[int, ...], device: torch.device) -> PackedWeight:
    codes = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    scales = _scales(shape, device, SPREAD / 73)
    return PackedWeight("random", Codes.INT8, codes, scales, columns=GROUP)


def _int4(shape: tuple[int, ...], device: torch.device) -> PackedWeight:
    scales = _scales(shape, device, SPREAD / 4.6)
    return PackedWeight("random", Codes.INT4, _bytes(shape, device), scales, -7.5 * scales, columns=GROUP)


def _fp8(shape: tuple[int, ...], device: torch.device) -> PackedWeight:
    codes = torch.randint(0, 0x70, shape, dtype=torch.uint8, device=device)  # up to 224: not a number is above
    codes |= torch.randint(0, 2, shape, dtype=torch.uint8, device=device) << 7
    scales = torch.full((*shape[:-1], 1), SPREAD / 60, device=device)
    return PackedWeight("random", Codes.FP8, codes.view(torch.float8_e4m3fn), scales)


def draw_mxfp4(shape: tuple[int, ...], device: torch.device) -> PackedWeight:
    scales = _scales(shape, device, 2.0**-7).to(torch.float8_e8m0fnu)
    return PackedWeight("random", Codes.FP4, _bytes(shape, device), scales, columns=GROUP)


def _bytes(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Two codes in each."""
    return torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, device=device)


def _scales(shape: tuple[int, ...], device: torch.device, value: float) -> torch.Tensor:
    return torch.full((*shape[:-1], shape[-1] // GROUP), value, dtype=torch.float16, device=device)


DRAWS: dict[str, Draw] = {"int8": _int8, "int4": _int4, "fp8": _fp8}
