"""Records of one plan become records of another: every byte of every head, whatever the pages and ranks of either."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest

from quire.core.dtypes import DType
from quire.core.memory import Memory, Part
from quire.handover.portable import Piece, Portable, common_boundary, lacking, page_sizes, pieces_of
from quire.models.read import read_model
from quire.models.shape import Layer, ModelShape
from quire.plan.layout import Entry
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, size_bytes
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS, layer

MIXED = (layer("full", 4), layer("window", 2, window=50), layer("sink", 5, sinks=20, window=33), KINDS["state"])
LATENT = Layer((Memory("latent", (Part("latent", 1, 64, replicated=True),), tokens_per_state=4),))
BOUNDARY = 128


def plan_of(
    layers: tuple[Layer, ...], page: int, ranks: int = 1, stages: int = 1, kv_dtype: DType = DType.BF16
) -> Plan:
    shape = ModelShape("small", "test", layers, max_length=300, weights_known=False)
    settings = Settings(
        page_tokens={"": page},
        match_unit_tokens=page,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        kv_dtype=kv_dtype,
        batch_tokens=48,
        max_requests=4,
    )
    return make_plan(shape, settings, Budget(sheets=(400,)))


def mark(kind: str, entry: Entry, unit: int, head: int) -> np.ndarray:
    """The bytes that one head of one token of one part of a layer has in these tests."""
    text = f"{kind} {entry.layer} {entry.part} {unit} {head}".encode()
    return np.frombuffer(hashlib.sha256(text).digest() * (entry.row_bytes // 32 + 1), dtype=np.uint8)[: entry.row_bytes]


def owner(head: int, heads: int, ranks: int) -> list[int]:
    """Ranks that keep a head, by definition: neighbours together, as evenly as can be, the first ranks with more."""
    if heads < ranks:
        return [rank for rank in range(ranks) if rank * heads // ranks == head]
    return [next(r for r, own in enumerate(np.array_split(np.arange(heads), ranks)) if head in own)]


def rank_pages(plan: Plan, span: Span, rank: int) -> np.ndarray:
    """What the plan's manifest says that a rank's pages hold, cell by cell: (page, group, byte)."""
    pages = np.zeros((len(span.logical), span.plan.groups, span.plan.page_bytes), dtype=np.uint8)
    for entry, (place, page) in product(span.plan.manifest, enumerate(span.logical.tolist())):
        for slot, head in product(range(entry.units), range(entry.model_heads)):
            own = [h for h in range(entry.model_heads) if rank in ranks_of(h, entry, plan.tensor_parallel)]
            if head in own:
                at = entry.offset_bytes + (slot * entry.heads + own.index(head)) * entry.row_bytes
                cell = mark(span.plan.name, entry, page * entry.units + slot, head)
                pages[place, entry.group, at : at + entry.row_bytes] = cell
    return pages


def ranks_of(head: int, entry: Entry, ranks: int) -> list[int]:
    is_replicated = entry.heads == entry.model_heads
    return list(range(ranks)) if is_replicated else owner(head, entry.model_heads, ranks)


def record_of(plan: Plan, spans: list[Span]) -> np.ndarray:
    """A record by definition: a page as it lies on rank 0, then the heads that rank 0 lacks, part by part."""
    found = []
    for span in spans:
        on_first = rank_pages(plan, span, 0)
        for place, page in enumerate(span.logical.tolist()):
            found.append(on_first[place].ravel())
            for entry in span.plan.manifest:
                others = [h for h in range(entry.model_heads) if 0 not in ranks_of(h, entry, plan.tensor_parallel)]
                for slot, head in product(range(entry.units), others):
                    found.append(mark(span.plan.name, entry, page * entry.units + slot, head))
    return np.concatenate(found)


def exchanged(ours: Plan, theirs: Plan, theirs_spans: list[Span]) -> np.ndarray:
    """What `theirs` gets of everything that `ours` keeps of the first BOUNDARY tokens."""
    portable, other, records = Portable(ours), Portable(theirs), Records(ours)
    kept = [records.in_unit(unit) for unit in range(BOUNDARY // records.unit_tokens)] if records.has_units else []
    kept += [records.at(BOUNDARY)] if records.has_boundaries else []
    filled = np.zeros(size_bytes(theirs_spans), dtype=np.uint8)
    for piece in pieces_of(theirs_spans):
        data = np.zeros(portable.piece_bytes(piece), dtype=np.uint8)
        has = [spans for spans in kept if any(span.plan.name == piece.kind for span in spans)]
        found = sum(portable.gather(record_of(ours, spans), spans, piece, data) for spans in has)
        assert found == portable.units(piece)
        other.scatter(filled, theirs_spans, piece, data)
    return filled


@pytest.mark.parametrize("layers", [MIXED, (LATENT, layer("full", 2)), (layer("window", 4, window=50), KINDS["state"])])
@pytest.mark.parametrize(
    ("ours", "theirs"), [((16, 1, 1), (32, 2, 1)), ((32, 2, 1), (16, 1, 1)), ((16, 2, 2), (16, 4, 1))]
)
def test_every_head_of_every_token_finds_its_page_and_its_rank(
    layers: tuple[Layer, ...], ours: tuple[int, int, int], theirs: tuple[int, int, int]
) -> None:
    """(page, ranks, stages) of each side; pages that both keep, compared with a record made cell by cell."""
    source, target = plan_of(2 * layers, *ours), plan_of(2 * layers, *theirs)
    assert not lacking(target, page_sizes(source), BOUNDARY)
    records = Records(target)
    spans = [*(records.in_unit(1) if records.has_units else []), *records.at(BOUNDARY)]
    got, wanted = exchanged(source, target, spans), record_of(target, spans)
    assert np.array_equal(got, wanted)
    assert len(wanted) == size_bytes(spans)
    back = np.zeros_like(got)
    for rank in range(target.tensor_parallel):
        pages = Portable(target).cut(got, spans, rank)
        for each, span in zip(pages, spans, strict=True):
            assert np.array_equal(each, rank_pages(target, span, rank)), f"rank {rank}"
        Portable(target).join(back, spans, rank, pages)
    assert np.array_equal(back, wanted)


@pytest.mark.parametrize(("heads", "ranks"), [(8, 2), (3, 2), (2, 4), (5, 4), (1, 2), (64, 2)])
def test_ranks_share_heads_between_them_and_none_is_left_out(heads: int, ranks: int) -> None:
    (entry, *_) = plan_of((layer("full", heads),), 16, ranks).stages[0].kinds[0].manifest
    for head in range(heads):
        assert [rank for rank in range(ranks) if head in entry.heads_of(rank, ranks)] == owner(head, heads, ranks)
    assert all(len(entry.heads_of(rank, ranks)) <= entry.heads for rank in range(ranks))


def test_latents_that_every_rank_keeps_travel_once() -> None:
    """A piece has each byte of the model once: a quarter of what four ranks keep of it."""
    plan = make_plan(
        read_model("deepseek-v3"), Settings(tensor_parallel=4, page_tokens={"": 64}), Budget(pool_bytes=1 << 33)
    )
    (kind,) = plan.stages[0].kinds
    piece = Piece(kind.name, 0, 64)
    assert Portable(plan).piece_bytes(piece) == 64 * kind.unique_unit_bytes == 64 * kind.unit_bytes
    gqa = plan_of((layer("full", 4),), 16, 4)
    (kind,) = gqa.stages[0].kinds
    assert Portable(gqa).piece_bytes(Piece("full", 0, 16)) == 16 * kind.unique_unit_bytes == 64 * kind.unit_bytes


def test_a_fingerprint_tells_models_and_dtypes_apart_and_not_pages_ranks_or_stages() -> None:
    def fingerprint(plan: Plan, weights: str = "w") -> str:
        return Portable(plan).fingerprint(weights, "1")

    one = fingerprint(plan_of(MIXED, 16))
    assert fingerprint(plan_of(MIXED, 32, ranks=2)) == one
    assert fingerprint(plan_of(MIXED, 16, stages=2)) == one
    others = [plan_of(MIXED, 16, kv_dtype=DType.FP16), plan_of(MIXED[:-1], 16), plan_of(MIXED[::-1], 16)]
    assert len({one, fingerprint(plan_of(MIXED, 16), "x"), *map(fingerprint, others)}) == 5


def window_plan(window: int, page: int) -> Plan:
    return plan_of((layer("full", 2), layer("window", 2, window=window)), page)


def test_a_boundary_is_a_whole_number_of_both_sides_units() -> None:
    ours = window_plan(64, 32)
    assert common_boundary(ours, 16, page_sizes(window_plan(64, 16)), 100) == 96
    assert common_boundary(ours, 48, {"full": [48], "window-64": [16]}, 100) == 96
    assert common_boundary(ours, 64, page_sizes(window_plan(64, 64)), 100) == 64
    assert common_boundary(ours, 16, page_sizes(window_plan(64, 16)), 31) == 0


def test_pages_that_begin_before_what_the_other_side_keeps_are_never_half_filled() -> None:
    """A window of 35 behind token 96 begins at 62: pages of 16 keep 48 and on, a page of 32 begins with 32. Another
    request could read 32 to 47 from it, so no more is handed over than lies in the window."""
    ours, theirs = window_plan(35, 32), window_plan(35, 16)
    assert common_boundary(ours, 16, page_sizes(theirs), 290) == 32, "the window reaches back to the first token"
    assert "pages of 32 tokens hold [32, 96), pages of 16 do not keep all of it" in lacking(
        ours, page_sizes(theirs), 96
    )
    assert "--page-tokens window-35=16" in lacking(ours, page_sizes(theirs), 96)
    assert common_boundary(theirs, 32, page_sizes(ours), 290) == 288


def test_a_chunked_kind_is_handed_over_where_its_chunks_allow() -> None:
    """Chunks of 70 begin at 140 (page of 16: 128, of 32: 128), at 210 (208, 192) and at 280 (272, 256)."""
    ours, theirs = (plan_of((KINDS["chunked"],), page) for page in (32, 16))
    assert common_boundary(ours, 16, page_sizes(theirs), 299) == 192
