"""Codes of 4 and 8 bits in 32-bit integers, as AWQ, GPTQ and compressed-tensors store them, lowest bits first."""

from __future__ import annotations

import torch

from quire.core.errors import ModelError


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """(…, word) → (…, code), unsigned."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Nibbles two by two, the first one low."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def signed(codes: torch.Tensor) -> torch.Tensor:
    """Unsigned codes of 8 bits, less 128."""
    return (codes ^ 128).view(torch.int8)


def order_of(where: str, groups: torch.Tensor, count: int, columns: int) -> torch.Tensor | None:
    """Inputs by group, from the group of each input; None: they lie in order."""
    inputs = len(groups)
    if groups.long().equal(torch.arange(inputs) // columns):
        return None
    sizes = torch.bincount(groups.long(), minlength=count) if bool((groups >= 0).all()) else torch.zeros(0)
    expected = torch.full((count,), columns)
    expected[-1] = inputs - columns * (count - 1)
    if not sizes.long().equal(expected):
        raise ModelError(
            f"{where} does not divide {inputs} inputs into {count} groups of {columns}: is the file whole?"
        )
    return torch.argsort(groups.long(), stable=True).int()
