"""Products with packed weights on this GPU, beside torch's with the same weight in bf16.

The four products of a layer of Llama-3.1-8B, one after another: queries, keys and values; output; gate and up; down.
Several layers follow one another, so that no weight is in the cache. Results are compared with those of the
dequantised weight before anything is timed; `error` is the largest of the four, relative to them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from quire.bench.measure import DEVICE, microseconds, random_numbers
from quire.bench.random_packed import DRAWS, MXFP4, draw_mxfp4
from quire.worker.model.packed_kernels import packed_product
from quire.worker.weights.packed import PackedWeight

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""Outputs and inputs."""
TOKENS = (1, 2, 8, 16, 32, 64, 128, 512, 2_048)
LAYERS = 3
NEAR, NEAR_IN_FP8 = 1e-2, 4e-2
"""Tokens in fp8 are off by 2.7 %."""
FORMS = (*DRAWS, MXFP4)
Product = Callable[[torch.Tensor], object]


@torch.inference_mode()
def packed_table() -> list[dict[str, object]]:
    plain = {count: _plain(count) for count in TOKENS}
    table: list[dict[str, object]] = [{"tokens": f"{count:,}", "bf16, µs": round(plain[count], 1)} for count in TOKENS]
    for form in FORMS:
        draw = draw_mxfp4 if form == MXFP4 else DRAWS[form]
        most = NEAR_IN_FP8 if form == "fp8" else NEAR
        layers = [[draw(shape, DEVICE) for shape in SHAPES] for _ in range(LAYERS)]
        for line, count in zip(table, TOKENS, strict=True):
            given = [random_numbers(count, inputs) for _, inputs in SHAPES]
            error = max(_error(*pair) for pair in zip(given, layers[0], strict=True))
            if not error < most:
                raise SystemExit(f"{form}, {count} tokens: off by {error:.2e} of the results' size: nothing is timed")
            took = _timed([[_packed(own) for own in layer] for layer in layers], given)
            line |= {f"{form}, µs": round(took, 1), f"bf16 ÷ {form}": round(plain[count] / took, 2)}
            line |= {f"error of {form}": f"{error:.1e}"}
    return table


def _plain(count: int) -> float:
    layers = [[random_numbers(*shape) for shape in SHAPES] for _ in range(LAYERS)]
    given = [random_numbers(count, inputs) for _, inputs in SHAPES]
    return _timed([[_dense(own) for own in layer] for layer in layers], given)


def _timed(layers: list[list[Product]], given: list[torch.Tensor]) -> float:
    """Microseconds of a layer."""

    def all_layers() -> None:
        for layer in layers:
            for product, tokens in zip(layer, given, strict=True):
                product(tokens)

    return microseconds(all_layers) / len(layers)


def _packed(weight: PackedWeight) -> Product:
    return lambda tokens: packed_product(tokens, weight, None)


def _dense(weight: torch.Tensor) -> Product:
    return lambda tokens: functional.linear(tokens, weight)


def _error(tokens: torch.Tensor, weight: PackedWeight) -> float:
    right = functional.linear(tokens.float(), weight.dequantised())
    return float((packed_product(tokens, weight, None).float() - right).norm() / right.norm())
