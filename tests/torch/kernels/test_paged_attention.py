"""Attention over pages, against its definition. Every arena is NaN where nothing was written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from paged_case import DEVICE, Heads, Pages, by_definition, rows_of

from quire.worker.backends.attention import Scores
from quire.worker.backends.launch import attend, launch_of
from quire.worker.kernels.shape import LayerViews, Tiles
from quire.worker.kernels.tiles import HeadShape, tiles_for
from quire.worker.kernels.work import Sight

FEW = Tiles(16, 32, 4, 2, 4, is_peeled=False)
MANY = Tiles(32, 16, 4, 2, 1, is_peeled=True)
ONCE = 1 << 20
HALVED, ALL, WIDE = Heads(), Sight(), Heads(4, 2, 256, 256)
PROMPTS, _ = tiles_for(100, HeadShape(4, 2, 256, 256, 2))
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Case:
    counts: tuple[int, ...] = (1, 1, 1)
    ends: tuple[int, ...] = (1, 33, 64)
    heads: Heads = HALVED
    sight: Sight = ALL
    tiles: Tiles = FEW
    piece_tokens: int = ONCE
    page_tokens: int = 16
    dtype: torch.dtype = torch.float32
    softcap: float | None = None
    sink_logits: bool = False
    has_slopes: bool = False
    columns: int = 0
    sink_columns: int = 0
    writes: bool = False
    """The newest token of each row is not in its slot yet."""


def error(case: Case) -> float:
    torch.manual_seed(0)
    counts, ends = list(case.counts), list(case.ends)
    pages = Pages(ends, case.heads, case.page_tokens, case.dtype, case.columns, case.sink_columns)
    pages.fill()
    new = pages.take_newest() if case.writes else None
    query = torch.randn(sum(counts), case.heads.query, case.heads.width).to(DEVICE, case.dtype)
    logits = torch.randn(case.heads.query, device=DEVICE) if case.sink_logits else None
    slopes = torch.rand(case.heads.query, device=DEVICE) if case.has_slopes else None
    scores = Scores(case.heads.width**-0.5, case.softcap, logits, slopes)
    group = case.heads.query // case.heads.key
    launch = launch_of(rows_of(counts, ends), case.sight, case.tiles, group, case.piece_tokens, DEVICE)
    out = torch.full((sum(counts), case.heads.query, case.heads.value_width), torch.nan).to(DEVICE, case.dtype)
    attend(query, LayerViews(pages.key, pages.value), pages.table, launch, scores, out, new)
    if new is not None:
        assert all(torch.equal(written, given) for written, given in zip(pages.newest(), new, strict=True))
    expected = by_definition(pages, query, counts, ends, case.sight, scores)
    return float((out.double() - expected).norm() / expected.norm())


NEW = Case(writes=True)
CHUNK = (1, 40, 3)
BEHIND = (50, 40, 63)
CASES = {
    "one token each, at the start, the middle and the end of a page": Case(),
    "in pieces": Case(piece_tokens=32),
    "in pieces that end where pages do not": Case(piece_tokens=24),
    "pages that are no power of two": Case(page_tokens=24, piece_tokens=32),
    "long pages": Case(page_tokens=128, ends=(127, 128, 129), piece_tokens=64),
    "a row without queries": Case(counts=(1, 0, 1)),
    "all heads share one": Case(heads=Heads(8, 1)),
    "no heads share": Case(heads=Heads(3, 3)),
    "seven heads share": Case(heads=Heads(14, 2), counts=(1, 2, 2)),
    "keys and values of different widths, no powers of two": Case(heads=Heads(4, 2, 24, 40), piece_tokens=32),
    "bf16": Case(dtype=torch.bfloat16, piece_tokens=32),
    "fp16": Case(dtype=torch.float16, piece_tokens=32),
    "soft-capped, sink logits": Case(softcap=2.0, sink_logits=True),
    "soft-capped, sink logits, in pieces": Case(softcap=2.0, sink_logits=True, piece_tokens=32),
    "scores lose with distance": Case(has_slopes=True),
    "scores lose with distance, in pieces": Case(has_slopes=True, heads=Heads(6, 2, 24, 40), piece_tokens=32),
    "scores lose with distance, soft-capped, sink logits": Case(
        has_slopes=True, softcap=2.0, sink_logits=True, counts=(1, 8, 3)
    ),
    "scores lose with distance, prompts": Case(counts=CHUNK, ends=BEHIND, tiles=MANY, has_slopes=True),
    "newest tokens from registers, scores lose with distance": replace(NEW, has_slopes=True, dtype=torch.bfloat16),
    "newest tokens from registers": NEW,
    "newest tokens from registers, in pieces": replace(NEW, piece_tokens=32, heads=Heads(4, 2, 24, 40)),
    "newest tokens from registers, soft-capped, sink logits": replace(NEW, softcap=2.0, sink_logits=True),
    "newest tokens from registers, a window that wraps round": replace(NEW, sight=Sight(window=19), columns=3),
    "newest tokens from registers, bf16": replace(NEW, dtype=torch.bfloat16, sight=Sight(chunk=32)),
    "a few tokens each": Case(counts=(1, 8, 3), piece_tokens=32),
    "new prompts": Case(counts=(1, 40, 16), ends=(1, 40, 16), tiles=MANY),
    "chunks of prompts": Case(counts=CHUNK, ends=BEHIND, tiles=MANY),
    "chunks of prompts in pieces": Case(counts=CHUNK, ends=BEHIND, tiles=MANY, piece_tokens=32, sink_logits=True),
    "a window": Case(sight=Sight(window=19)),
    "a window, on a table that wraps round": Case(sight=Sight(window=19), columns=3),
    "a window and prompts": Case(counts=CHUNK, ends=BEHIND, tiles=MANY, sight=Sight(window=19)),
    "a window and a few tokens each": Case(counts=(1, 5, 3), sight=Sight(window=19), piece_tokens=32),
    "a window wider than a block": Case(counts=(20,), ends=(70,), tiles=MANY, sight=Sight(window=45)),
    "chunked": Case(sight=Sight(chunk=20)),
    "chunked, prompts": Case(counts=CHUNK, ends=BEHIND, tiles=MANY, sight=Sight(chunk=20)),
    "kept first tokens beside a window": Case(sight=Sight(window=19, sinks=5), columns=5, sink_columns=1),
    "wide heads, prompts": Case(counts=(1, 70, 16), ends=(9, 80, 16), heads=WIDE, tiles=PROMPTS, dtype=torch.bfloat16),
    "wide heads, prompts, a window": Case(
        counts=(90, 7), ends=(140, 60), heads=WIDE, tiles=PROMPTS, sight=Sight(window=45), dtype=torch.float16
    ),
    "wide heads, prompts in pieces, soft-capped, sink logits": Case(
        counts=(70,), ends=(150,), heads=WIDE, tiles=PROMPTS, piece_tokens=64, softcap=2.0, sink_logits=True,
        dtype=torch.float16,
    ),
    "kept first tokens, prompts": Case(counts=CHUNK, ends=BEHIND, tiles=MANY, sight=Sight(window=19, sinks=5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_follow_the_definition(name: str) -> None:
    case = CASES[name]
    assert error(case) < TOLERANCE[case.dtype]


@pytest.mark.law
@pytest.mark.parametrize("seed", range(4))
def test_any_batch_follows_the_definition(seed: int) -> None:
    case = random_case(seed)
    assert error(case) < TOLERANCE[case.dtype], case


def random_case(seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: object) -> object:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    counts = tuple(number(0, 20) for _ in range(2))
    return Case(
        counts=counts,
        ends=tuple(count + number(1, 50) for count in counts),
        heads=pick(Heads(4, 2), Heads(6, 2, 16, 32), Heads(5, 1, 32, 16)),
        sight=pick(Sight(), Sight(window=number(1, 40)), Sight(chunk=number(1, 40)), Sight(number(1, 20), 0, 7)),
        tiles=pick(FEW, MANY),
        piece_tokens=pick(ONCE, 16, 48),
        page_tokens=number(3, 40),
        dtype=pick(torch.float32, torch.float16),
        softcap=pick(None, 1.0),
        sink_logits=pick(True, False),
    )  # type: ignore[arg-type]
