"""Keys, values and latents in 8 bits: e4m3, four bits of exponent and three of mantissa.

    keys, values   one scale for each head, outside the arena
    latents        one fp32 scale for each 128 numbers of a token, after them in its row

A value is its stored number times its scale. Numbers out of range are clamped.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from quire.plan.layout import GRANULE_BYTES
from quire.worker.pages.arena import PartView

EIGHT = torch.float8_e4m3fn
LARGEST = torch.finfo(EIGHT).max
GROUP_NUMBERS = 128
SCALE_BYTES = 4


def is_quantised(part: PartView) -> bool:
    return part.tensor.dtype == EIGHT


def width_of(part: PartView) -> int:
    """Numbers of a row, without the scales after them."""
    row = part.tensor.shape[3]
    return row if part.scales is not None or not is_quantised(part) else row - SCALE_BYTES * groups_of(row)


def groups_of(row_bytes: int) -> int:
    """Scales in a row of a latent part."""
    return -(-row_bytes // (GROUP_NUMBERS + SCALE_BYTES))


def encode(part: PartView, values: torch.Tensor) -> torch.Tensor:
    """(token, head, width) to the bytes of rows (token, byte)."""
    wide = values.float()
    if part.scales is not None:
        return _to_eight_bits(wide / part.scales[:, None]).view(torch.uint8).flatten(1)
    groups = groups_of(part.tensor.shape[3])
    cut = functional.pad(wide, (0, groups * GROUP_NUMBERS - wide.shape[-1])).view(*wide.shape[:2], groups, -1)
    scales = cut.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny * LARGEST) / LARGEST
    numbers = _to_eight_bits(cut / scales[..., None]).flatten(-2)[..., : wide.shape[-1]].contiguous()
    return torch.cat([numbers.view(torch.uint8), scales.contiguous().view(torch.uint8)], dim=-1).flatten(1)


def decode(part: PartView, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes of rows (…, head, byte) to (…, head, width)."""
    width = width_of(part)
    numbers = rows[..., :width].contiguous().view(EIGHT).float()
    if part.scales is not None:
        return (numbers * part.scales[:, None]).to(dtype)
    scales = rows[..., width:].contiguous().view(torch.float32)
    return (numbers * scales.repeat_interleave(GROUP_NUMBERS, dim=-1)[..., :width]).to(dtype)


def row_scales(part: PartView) -> torch.Tensor:
    """(address, token, scale): a view of the scales in the rows of a latent part."""
    places, units, _, row = part.tensor.shape
    offset = (int(part.tensor.storage_offset()) + width_of(part)) // SCALE_BYTES
    strides = (GRANULE_BYTES // SCALE_BYTES, row // SCALE_BYTES, 1)
    view = torch.empty(0, dtype=torch.float32, device=part.tensor.device)
    return view.set_(part.tensor.untyped_storage(), offset, (places, units, groups_of(row)), strides)


def _to_eight_bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.clamp(-LARGEST, LARGEST).to(EIGHT)
