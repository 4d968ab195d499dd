"""Packed weights on a GPU, in place of the reference products: which kernel multiplies how many tokens.

    up to 2 tokens    `few`: codes are multiplied where they are dequantised
    up to 32          `multiply_split`: tiles of the weight are dequantised for matrix units, and inputs are divided
    more              fp8 with a scale for each output: `multiply_rounded`, tokens in fp8 too
                      others: `multiply`, as experts are multiplied; from 512 tokens on `many`: the weight is written
                      out, part by part, and multiplied by torch

Of two shapes of Llama-3.1-8B, gate and up (28,672 × 4,096) and down (4,096 × 14,336), one H200 (torch 2.11, triton 3.6)
takes, in µs (with two tokens in fp8, a kernel that does the same):

    tokens        bf16        fp8         int4 with minimums
    1                         32   18      34   19
    2                         37   22      55   27
    16            58   32     48   22      69   41
    32            60   33     47   28      95   48
    64            64   35     50   23     113  163
    128           69   37     39   26     128  217
    2,048        633  305    365  194     693  337
"""

from __future__ import annotations

import torch

from quire.worker.kernels.experts import Gate, Product, Tile, multiply
from quire.worker.kernels.few import FEW_ROWS, Cut, few, late_of, many, sums_groups
from quire.worker.kernels.gated import shared_bytes_of
from quire.worker.kernels.octets import FP8, INT8, KINDS, SCALES
from quire.worker.kernels.rounded import can_round, multiply_rounded
from quire.worker.kernels.routing import sorted_slots
from quire.worker.kernels.split import SPLIT_ROWS, multiply_split
from quire.worker.model.expert_tiles import EXACT, fitted, measured
from quire.worker.weights.packed import PackedWeight

MANY_ROWS = 512
NO_GATE = Gate()


def packed_product(tokens: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """(…, in) times (out, in): (…, out). In place of `packed_linear.multiply`."""
    tokens = tokens if packed.order is None else tokens[..., packed.order]
    found: torch.Tensor = product(tokens, *_parts(product_of(packed)), None)
    return found if bias is None else found + bias


def packed_grouped(tokens: torch.Tensor, packed: PackedWeight, ends: torch.Tensor) -> torch.Tensor:
    """(pair, in) times (expert, out, in): (pair, out). In place of `packed_experts.multiply_all`; `ends`: where each
    expert's pairs end."""
    expert = torch.searchsorted(ends, torch.arange(len(tokens), device=tokens.device), right=True)
    if packed.order is not None:
        tokens = torch.gather(tokens, 1, packed.order[expert].long())
    found: torch.Tensor = product(tokens, *_parts(product_of(packed)), expert.int())
    return found


def product_of(packed: PackedWeight) -> Product:
    """A weight (out, in) or experts' (expert, out, in), as kernels that dequantise tiles read it; scales in place of
    minimums and factors that are absent."""
    scales, columns = packed.scales.contiguous(), packed.columns or packed.shape[-1]
    minimums, factors = (scales if own is None else own.contiguous() for own in (packed.minimums, packed.factors))
    has = packed.minimums is not None, packed.factors is not None
    kinds = KINDS.index(packed.kind.value), SCALES.get(scales.dtype, 0)
    facts = (*kinds, packed.rows, columns, *has, packed.shape[-1])
    return Product(packed.codes.contiguous(), sides=(scales, minimums, factors), facts=facts)


def _parts(product: Product) -> tuple[list[torch.Tensor], list[int]]:
    assert product.sides is not None
    return [product.weight, *product.sides], as_ints(product.facts)


def as_ints(facts: tuple[int, ...]) -> list[int]:
    """For an operation, which takes no truths beside sizes that the compiler does not know."""
    *sizes, has_minimums, has_factors, inputs = facts
    return [*sizes, int(has_minimums), int(has_factors), inputs]


def as_told(facts: list[int]) -> tuple[int, ...]:
    """The other way round: a kernel is compiled for truths."""
    *sizes, has_minimums, has_factors, inputs = facts
    return (*sizes, bool(has_minimums), bool(has_factors), inputs)


@torch.library.custom_op("quire::packed_product", mutates_args=())
def product(
    tokens: torch.Tensor, weights: list[torch.Tensor], facts: list[int], experts: torch.Tensor | None
) -> torch.Tensor:
    """(…, in) times (out, in), or (pair, in) times (expert, out, in) with the expert of each pair. `weights`: codes,
    scales, minimums and factors; `facts`: as `Product`."""
    flat, told = tokens.reshape(-1, tokens.shape[-1]).contiguous(), as_told(facts)
    weight, scales, minimums, factors = weights
    count, own = len(flat), Product(weight, sides=(scales, minimums, factors), facts=told)
    if experts is not None:
        tile = grouped_tile(count, own, flat)
        slots = sorted_slots(experts, len(weight), tile.rows)
        return multiply(flat, None, own, slots, (tile, NO_GATE, count, 1))
    if count <= FEW_ROWS:
        found = few(flat, tuple(weights), told, None, cut_of(count, told, weight.shape))
    elif count <= SPLIT_ROWS:
        found = multiply_split(flat, own)
    elif can_round(flat, weight, told):
        found = multiply_rounded(flat, weight, scales)
    elif count >= MANY_ROWS:
        found = many(flat, tuple(weights), told)
    else:
        one = own._replace(weight=weight[None])
        found = multiply(flat, None, one, None, (tile_of(count, one, flat), NO_GATE, count, 1))
    return found.view(*tokens.shape[:-1], weight.shape[-2])


@product.register_fake
def _(
    tokens: torch.Tensor, weights: list[torch.Tensor], facts: list[int], experts: torch.Tensor | None
) -> torch.Tensor:
    del facts, experts
    return tokens.new_empty(*tokens.shape[:-1], weights[0].shape[-2])


IN_GROUPS, ONE_BY_HARDWARE, TWO_BY_HARDWARE = Cut(16, 1024, 4, 3), Cut(4, 2048, 4), Cut(16, 512, 4, 3)


def cut_of(count: int, facts: tuple[int, ...], shape: torch.Size) -> Cut:
    """The fastest of some ten to twenty; of two tokens with other weights, of those that were fastest with four."""
    kind, (outputs, stored) = facts[0], shape
    if sums_groups(facts, IN_GROUPS.depth):
        return IN_GROUPS
    by_hardware = ONE_BY_HARDWARE if count == 1 else TWO_BY_HARDWARE
    if kind == FP8.value and late_of(facts, by_hardware.depth):
        return by_hardware
    if count > 1:
        return Cut(2, 2048, 4)
    if kind in (INT8.value, FP8.value):
        return Cut(8, 512, 4, 3)
    return Cut(4, 512, 2) if outputs > 2 * stored else Cut(4, 1024, 4)


def tile_of(count: int, product: Product, tokens: torch.Tensor) -> Tile:
    """Of more than `SPLIT_ROWS` tokens, and fewer than `MANY_ROWS`."""
    outputs, _ = product.sizes
    if tokens.element_size() > 2:
        return EXACT
    tile = Tile(64, 64, 128, 4, 3, swaps=True) if count <= 64 else Tile(128, 64, 128, 4, 3, swaps=True, group=8)
    return fitted(tile, outputs, 1, shared_bytes_of(tokens.device))


def grouped_tile(count: int, product: Product, tokens: torch.Tensor) -> Tile:
    """As experts' second product, which has no gate either."""
    if tokens.element_size() > 2:
        return EXACT
    _, tile = measured(count / len(product.weight), product.facts[0])
    return fitted(tile, product.sizes[0], 1, shared_bytes_of(tokens.device))
