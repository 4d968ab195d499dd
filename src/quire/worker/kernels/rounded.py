"""Products of many tokens with a weight in fp8, on matrix units for 8 bits: each token is rounded to fp8 too.

    token ──▶ its greatest number is 448 ──▶ product of codes, in bf16 ──▶ × the token's scale × the output's scale

Rounding a token adds about as much error as the weight has (2.6 % each, of random numbers). cuBLAS multiplies; where
there are many results, it is faster to have it scale them as well.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from quire.worker.kernels.octets import FP8
from quire.worker.kernels.tile import LARGEST_EIGHT, to_eight

SCALED_RESULTS = 1_500_000
"""Results from which on the library scales them."""
COLUMNS = 2048
MULTIPLE = 16
"""Of inputs and of outputs: what the library takes."""
CAPABILITY = 8, 9


@triton.jit
def round_rows(tokens, codes, scales, inputs, size: tl.constexpr):
    """Grid (token,)."""
    row, number = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    there = number < inputs
    found = tl.load(tokens + row * inputs + number, mask=there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(found), 0), 1e-12) / LARGEST_EIGHT
    tl.store(codes + row * inputs + number, to_eight(found / scale).to(codes.dtype.element_ty), mask=there)
    tl.store(scales + row, scale)


@triton.jit
def scale_results(results, of_tokens, of_outputs, outputs, size: tl.constexpr):
    """Grid (token, block of outputs), in place."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * size + tl.arange(0, size)
    there = column < outputs
    found = tl.load(results + row * outputs + column, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(of_tokens + row) * tl.load(of_outputs + column, mask=there, other=0.0)
    tl.store(results + row * outputs + column, (found * scale).to(results.dtype.element_ty), mask=there)


def can_round(tokens: torch.Tensor, weight: torch.Tensor, facts: tuple[int, ...]) -> bool:
    """Whether a weight has one scale for each output, and this device's matrix units take 8 bits."""
    kind, scale, rows, block, has_minimums, has_factors, inputs = facts
    is_plain = kind == FP8.value and scale == 0 and rows == 1 and block >= inputs and not (has_minimums or has_factors)
    is_even = inputs % MULTIPLE == 0 and weight.shape[0] % MULTIPLE == 0
    return is_plain and is_even and tokens.dtype is torch.bfloat16 and _has_units(tokens.device)


@cache
def _has_units(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= CAPABILITY


def multiply_rounded(tokens: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(token, in) times (out, in), whose scales are (out, 1)."""
    (count, inputs), outputs = tokens.shape, weight.shape[0]
    codes, own = torch.empty_like(tokens, dtype=weight.dtype), tokens.new_empty(count, 1, dtype=torch.float32)
    round_rows[(count,)](tokens, codes, own, inputs, triton.next_power_of_2(inputs), num_warps=8)
    others = scales.float().view(1, outputs)
    if count * outputs >= SCALED_RESULTS:
        return torch._scaled_mm(codes, weight.t(), own, others, out_dtype=tokens.dtype)
    one = _one(tokens.device)
    found = torch._scaled_mm(codes, weight.t(), one, one, out_dtype=tokens.dtype, use_fast_accum=True)
    scale_results[(count, triton.cdiv(outputs, COLUMNS))](found, own, others, outputs, COLUMNS, num_warps=4)
    return found


@cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones((), device=device)
