"""Random packed weights of every form."""

from __future__ import annotations

import torch
from paged_case import DEVICE

from quire.worker.weights.packed import Codes, PackedWeight

FORMS = {
    "int8 by output": (Codes.INT8, 1, 0, torch.float32, False),
    "int8 by group": (Codes.INT8, 1, 32, torch.float16, False),
    "int4": (Codes.INT4, 1, 32, torch.float16, True),
    "sint4": (Codes.SINT4, 1, 16, torch.bfloat16, False),
    "fp8": (Codes.FP8, 1, 0, torch.float32, False),
    "fp8 in blocks": (Codes.FP8, 48, 32, torch.float32, False),
    "MXFP4": (Codes.FP4, 1, 32, torch.float8_e8m0fnu, False),
    "NVFP4": (Codes.FP4, 1, 16, torch.float8_e4m3fn, False),
}


def weight(form: str, *shape: int) -> PackedWeight:
    kind, rows, columns, dtype, has_minimums = FORMS[form]
    *experts, outputs, inputs = shape
    torch.manual_seed(outputs)
    codes = torch.randint(0, 256, (*experts, outputs, inputs // (2 if kind.has_nibbles else 1)), dtype=torch.uint8)
    if kind is Codes.FP8:
        codes[codes & 127 == 127] = 1  # no NaN; below the least normal number
    blocks = (*experts, -(-outputs // rows), -(-inputs // (columns or inputs)))
    scales = torch.randint(118, 122, blocks, dtype=torch.uint8).view(dtype) if dtype is torch.float8_e8m0fnu else None
    scales = (torch.rand(blocks) * 0.1).to(dtype) if scales is None else scales
    minimums = torch.randn(blocks).half() if has_minimums else None
    factors = torch.rand(*experts, outputs, 1) if form == "NVFP4" else None
    made = PackedWeight("w", kind, codes.view(kind.stored), scales, minimums, factors, rows=rows, columns=columns)
    return made.mapped(lambda tensor: tensor.to(DEVICE))
