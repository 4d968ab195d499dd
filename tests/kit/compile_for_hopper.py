"""Compiles kernels for a Hopper GPU where there is none: python compile_for_hopper.py FORM

Triton's interpreter takes much that its compiler does not. A driver that knows a target and launches nothing is put in
place of the machine's; ptxas comes with Triton. Prints each kernel once for each way it was compiled.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from packed_case import weight
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from quire.worker.kernels import rounded
from quire.worker.kernels.experts import HALVES, SILU, Gate, by_experts
from quire.worker.model import expert_tiles, packed_kernels
from quire.worker.model.packed_kernels import packed_product, product_of

SHARED_BYTES, PROCESSORS = 232_448, 132
INPUTS, OUTPUTS, EXPERTS = 4096, 512, 8
TOKENS = (1, 2, 5, 30, 40, 100, 600)


class Utils:
    @staticmethod
    def get_device_properties(_device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": PROCESSORS}

    @staticmethod
    def load_binary(*_given: object) -> tuple[int, ...]:
        return 0, 0, 64, 0, 1024


class Launcher:
    def __init__(self, *_given: object) -> None:
        pass


class Hopper:
    """What Triton asks of a driver until a kernel is compiled."""

    utils, launcher_cls = Utils, Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_given: object) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only() -> None:
    run = JITFunction.run

    def warm(kernel: Any, *given: object, **named: object) -> None:
        run(kernel, *given, **named | {"warmup": True})
        print(kernel.__name__, flush=True)

    driver.set_active(Hopper())
    JITFunction.run = warm


def not_multiplied(left: torch.Tensor, right: torch.Tensor, *_scales: object, **_named: object) -> torch.Tensor:
    return left.new_empty(left.shape[0], right.shape[1], dtype=torch.bfloat16)


def main(form: str) -> None:
    compile_only()
    torch._scaled_mm = not_multiplied
    rounded._has_units = lambda _device: True  # type: ignore[assignment]
    packed_kernels.shared_bytes_of = expert_tiles.shared_bytes_of = lambda _device: SHARED_BYTES  # type: ignore[attr-defined]
    packed = weight(form, OUTPUTS, INPUTS)
    for count in TOKENS:
        packed_product(torch.zeros(count, INPUTS, dtype=torch.bfloat16), packed, None)
    first, second = (product_of(weight(form, EXPERTS, outputs, OUTPUTS)) for outputs in (2 * OUTPUTS, OUTPUTS))
    for count in (8, 64, 512):
        tokens = torch.zeros(count, OUTPUTS, dtype=torch.bfloat16)
        chosen, shares = torch.zeros(count, 2, dtype=torch.int32), torch.zeros(count, 2, dtype=torch.bfloat16)
        tiles = expert_tiles.tiles_for(2 * count, (first, second), tokens)
        by_experts(tokens, (chosen, shares), (first, second), Gate(HALVES.value, SILU.value), tiles)


if __name__ == "__main__":
    main(sys.argv[1])
