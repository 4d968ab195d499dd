"""How kernels are timed on a GPU: recorded in a CUDA graph, the median of replays, each between two events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

DEVICE = torch.device("cuda")
GRANULE = 128
"""256 bytes, in numbers of bf16."""
REPLAYS = 50


def microseconds(action: Callable[[], object]) -> float:
    action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    for _ in range(5):
        graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]  # type: ignore[no-untyped-call]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * float(statistics.median(begin.elapsed_time(end) for begin, end in events))


def random_numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)
