"""A layer's experts on this GPU: router, both products and the sum, on Quire's kernels and on torch's grouped products.

One layer of Qwen3-30B-A3B with random weights, which are more than the cache holds. Both ways run on the same module;
their results are compared before they are timed.
"""

from __future__ import annotations

import torch

from quire.bench.measure import DEVICE, microseconds, random_numbers
from quire.bench.random_models import config_of, model_of
from quire.worker.model.experts import use_experts

MODEL = "qwen3-30b-a3b"
TOKENS = (8, 64, 256, 1_024, 8_192)
NEAR = 2e-2


@torch.inference_mode()
def experts_table() -> list[dict[str, object]]:
    model = model_of(config_of(MODEL, 1), DEVICE)
    block = model.model.layers[0].mlp
    given = {count: random_numbers(1, count, model.config.hidden_size) for count in TOKENS}
    right, plain = _results(block, given), _times(block, given)
    if not use_experts(model):
        raise SystemExit(f"no kernel computes what transformers' code for {MODEL} computes: nothing is timed")
    for count, found in _results(block, given).items():
        error = float((found - right[count]).norm() / right[count].norm())
        if not error < NEAR:
            raise SystemExit(f"results of {count} tokens differ by {error:.2e} of their size: nothing is timed")
    ours = _times(block, given)
    return [
        {
            "tokens": f"{count:,}",
            "torch, µs": round(plain[count], 1),
            "Quire, µs": round(ours[count], 1),
            "ratio": round(plain[count] / ours[count], 2),
        }
        for count in TOKENS
    ]


def _results(block: torch.nn.Module, given: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {count: block(tokens).float() for count, tokens in given.items()}


def _times(block: torch.nn.Module, given: dict[int, torch.Tensor]) -> dict[int, float]:
    return {count: microseconds(lambda tokens=tokens: block(tokens)) for count, tokens in given.items()}  # type: ignore[misc]
