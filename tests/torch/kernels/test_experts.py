"""Experts on kernels: who computes what, and both products, compared with one expert after the other."""

from __future__ import annotations

import pytest
import torch
from expert_case import Activation, clamped, gelu, one_by_one, silu
from paged_case import DEVICE
from torch._dynamo.testing import CompileCounter

from quire.worker.kernels.experts import CLAMPED, GELU, HALVES, INTERLEAVED, SILU, Gate, Product, Tile, by_experts
from quire.worker.kernels.routing import ALONE, SOFTMAX, SOFTMAX_OF_CHOSEN, routed, sorted_slots

GATES: dict[str, tuple[Gate, Activation]] = {
    "silu": (Gate(HALVES.value, SILU.value), silu),
    "gpt-oss": (Gate(INTERLEAVED.value, CLAMPED.value, 1.702, 7.0), clamped),
    "gelu": (Gate(HALVES.value, GELU.value), gelu),
}
CHOICES = ("spread", "one expert", "two experts")


def chosen_by(sort: str, tokens: int, experts: int, each: int) -> torch.Tensor:
    """(token, chosen), different experts for each token unless all choose one."""
    if sort == "one expert":
        return torch.full((tokens, each), 2, dtype=torch.int32, device=DEVICE)
    among = experts if sort == "spread" else max(2, each)
    return torch.stack([torch.randperm(among)[:each] for _ in range(tokens)]).int().to(DEVICE)


@pytest.mark.parametrize(("tokens", "experts", "each"), [(1, 5, 3), (7, 12, 3), (64, 128, 8), (900, 9, 5)])
@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("sort", CHOICES)
def test_every_pair_has_a_slot_in_a_tile_of_its_expert(
    tokens: int, experts: int, each: int, rows: int, sort: str
) -> None:
    torch.manual_seed(0)
    chosen = chosen_by(sort, tokens, experts, each)
    slots, count = sorted_slots(chosen, experts, rows), tokens * each
    assert (count > ALONE) == (tokens == 900)
    order, tiles = slots.order.view(-1, rows).cpu(), slots.experts.cpu()
    used = order[tiles >= 0]
    assert sorted(used[used < count].tolist()) == list(range(count))
    assert bool((tiles[tiles.argmin() if (tiles < 0).any() else len(tiles) :] == -1).all())
    expected = torch.sort(chosen.flatten().cpu(), stable=True).indices
    assert used[used < count].tolist() == expected.tolist()
    owners = tiles[tiles >= 0][:, None].expand(-1, rows)[used < count]
    assert bool((owners == chosen.flatten().cpu()[used[used < count].long()]).all())


@pytest.mark.parametrize(("experts", "each"), [(5, 3), (128, 8), (60, 4), (32, 1)])
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("rule", [SOFTMAX.value, SOFTMAX_OF_CHOSEN.value])
def test_tokens_go_to_their_likeliest_experts(experts: int, each: int, is_scaled: bool, rule: int) -> None:
    torch.manual_seed(0)
    logits, bias = torch.randn(11, experts, device=DEVICE), torch.randn(experts, device=DEVICE)
    found, shares = routed(logits, bias, each, rule, is_scaled)
    given = logits + bias
    if rule == SOFTMAX.value:
        right, chosen = torch.topk(torch.softmax(given, -1), each)
        right = right / right.sum(-1, keepdim=True) if is_scaled else right
    else:
        right, chosen = torch.topk(given, each)
        right = torch.softmax(right, -1)
    assert found.tolist() == chosen.tolist()
    torch.testing.assert_close(shares, right)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("tokens", "inputs", "width", "tile"),
    [
        (1, 40, 24, Tile(16, 16, 32)),
        (9, 96, 40, Tile(16, 32, 32, swaps=True)),
        (9, 64, 48, Tile(16, 16, 32, copies=True)),
        (20, 64, 48, Tile(32, 32, 32, swaps=True, copies=True, group=4)),
        (70, 72, 56, Tile(16, 32, 64, group=8)),
    ],
)
@pytest.mark.parametrize("sort", CHOICES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_both_products_are_those_of_the_experts(
    gate: str, tokens: int, inputs: int, width: int, tile: Tile, sort: str, is_transposed: bool
) -> None:
    torch.manual_seed(0)
    own, join = GATES[gate]
    given, chosen = torch.randn(tokens, inputs, device=DEVICE), chosen_by(sort, tokens, 6, 3)
    shares = torch.rand(tokens, 3, device=DEVICE)
    up, down = torch.randn(6, 2 * width, inputs, device=DEVICE), torch.randn(6, inputs, width, device=DEVICE)
    both = torch.randn(6, 2 * width, device=DEVICE), torch.randn(6, inputs, device=DEVICE)
    biases = None if gate == "silu" else both
    right = one_by_one(given, (chosen, shares), (up, down), biases, (join, own.sort == INTERLEAVED.value))
    lie = [one.mT.contiguous() if is_transposed else one for one in (up, down)]
    first, second = (
        Product(one, is_transposed, None if biases is None else biases[turn]) for turn, one in enumerate(lie)
    )
    found = by_experts(given, (chosen, shares), (first, second), own, (tile, tile))
    assert float((found - right).norm() / right.norm()) < 1e-5


def test_routing_is_compiled_once_for_any_number_of_tokens() -> None:
    """Red: an operation whose outputs say a number of tokens. The compiler gives up after eight numbers, and layers run
    eagerly."""
    counter = CompileCounter()

    def shares(logits: torch.Tensor) -> torch.Tensor:
        return routed(logits, None, 2, SOFTMAX.value, True)[1] + 1

    route = torch.compile(shares, backend=counter, dynamic=True, fullgraph=True)
    for tokens in (3, 5, 9, 17):
        route(torch.randn(tokens, 8, device=DEVICE))
    assert counter.frame_count == 1
