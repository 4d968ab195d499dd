"""Products of packed weights on this CPU: in C, compared with dequantising for each product, layer by layer.

    python bench/packed_products.py [--inputs 2048] [--outputs 2048] [--experts 32] [--chosen 4] [--rounds 5]
                                    [--threads 1]

Random weights in each kind of codes; processor microseconds of one product for 1 and 16 tokens, the best of the rounds,
which are interleaved. With `--threads 1` they can be compared on a machine that other programs use too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from quire.native.library import native, why_not
from quire.worker.model.packed_experts import multiply_each
from quire.worker.model.packed_linear import multiply
from quire.worker.model.tiles import Tiles
from quire.worker.weights.packed import Codes, PackedWeight

TOKENS = (1, 16)
GROUPS = {Codes.INT4: 32, Codes.SINT4: 128, Codes.INT8: 32, Codes.FP4: 32, Codes.FP8: 128}


def weight_of(kind: Codes, *shape: int) -> PackedWeight:
    *lead, inputs = shape
    codes = torch.randint(0, 120, (*lead, inputs // 2 if kind.has_nibbles else inputs)).to(torch.uint8)
    scales = torch.rand(*lead, inputs // GROUPS[kind]) / 50
    minimums = -scales if kind is Codes.INT4 else None
    return PackedWeight(kind.value, kind, codes.view(kind.stored), scales, minimums, columns=GROUPS[kind])


def microseconds(work: Callable[[], object]) -> float:
    """Of processors, for one call; as many calls as take a tenth of a second."""
    calls, begin = 0, time.process_time()
    while time.process_time() - begin < 0.1:
        work()
        calls += 1
    return (time.process_time() - begin) / calls * 1e6


def ways(options: argparse.Namespace, kind: Codes, count: int) -> dict[str, tuple[Callable[[], object], ...]]:
    """By product: the reference and C."""
    library = native()
    assert library is not None
    dense, experts = (weight_of(kind, *lead, options.outputs, options.inputs) for lead in ((), (options.experts,)))
    tiles = Tiles(dense, library), Tiles(experts, library)
    tokens, pairs = torch.randn(count, options.inputs), torch.randn(count * options.chosen, options.inputs)
    chosen = torch.randint(0, options.experts, (count * options.chosen,)).sort().values
    ends = torch.searchsorted(chosen, torch.arange(options.experts), right=True)
    return {
        "linear": (lambda: multiply(tokens, dense, None), lambda: tiles[0].multiply(tokens)),
        "experts": (lambda: multiply_each(pairs, experts, ends), lambda: tiles[1].multiply_experts(pairs, ends)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("inputs", 2048), ("outputs", 2048), ("experts", 32), ("chosen", 4), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kinds", nargs="*", default=[kind.value for kind in Codes])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if native() is None:
        raise SystemExit(f"there is nothing to compare: {why_not()}")
    print("| codes, product, tokens | dequantised each time, µs | in C, µs | ratio |\n| --- | --- | --- | --- |")
    for kind in (Codes(name) for name in options.kinds):
        for count in TOKENS:
            for product, both in ways(options, kind, count).items():
                rounds = [[microseconds(work) for work in both] for _ in range(options.rounds)]
                slow, fast = (min(one[side] for one in rounds) for side in (0, 1))
                print(
                    f"| {kind.value}, {product}, {count} | {slow:,.0f} | {fast:,.0f} | {slow / fast:.0f} |", flush=True
                )


if __name__ == "__main__":
    main()
