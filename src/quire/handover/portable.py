"""Records in a form without pages and ranks: what engines with different plans of one model exchange.

    piece      tokens [begin, end) of one kind: layer by layer, part by part, (unit, head of the whole model, byte)

    record of a plan with pages of 16, one rank ──▶ pieces ──▶ record of a plan with pages of 32, two ranks

A record holds each head once, however many ranks have a copy of it: every page as it is on the first rank, and after
it, part by part, the heads that only other ranks keep. `cut` and `join` convert to each rank's pages and back.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kinds import Kind
from quire.kinds.base import Interval
from quire.plan.layout import Entry
from quire.plan.plan import Plan
from quire.plan.records import Span, tail_pages

Bytes = npt.NDArray[np.uint8]
MOST_TRIES = 64
"""Boundaries that are tried before a prompt is computed where it arrived."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Tokens [begin, end) of a kind; of a state [0, 1)."""

    kind: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Home:
    """Where a plan keeps one part of one layer."""

    stage: int
    kind: int
    entry: Entry


class Portable:
    def __init__(self, plan: Plan) -> None:
        self.ranks = plan.tensor_parallel
        self._rope = [plan.rope] if plan.rope else []
        self._homes: dict[str, list[Home]] = {}
        self._kinds: dict[str, Kind] = {}
        for stage, one in enumerate(stage for stage in plan.stages if stage.kinds):
            for kind, own in enumerate(one.kinds):
                self._kinds[own.name] = own.kind
                self._homes.setdefault(own.name, []).extend(Home(stage, kind, entry) for entry in own.manifest)
        for homes in self._homes.values():
            homes.sort(key=lambda home: (home.entry.layer, home.entry.purpose, home.entry.part))

    def fingerprint(self, weights: str, version: str) -> str:
        """Equal for engines that may exchange pieces: the same weights, kinds, layers, heads, dtypes and rotary
        frequencies."""
        parts = {
            kind: [(e.layer, e.purpose, e.part, e.dtype, e.model_heads, e.row_bytes) for e in map(_entry, homes)]
            for kind, homes in self._homes.items()
        }
        return hashlib.sha256(json.dumps([version, weights, parts, *self._rope], sort_keys=True).encode()).hexdigest()

    def piece_bytes(self, piece: Piece) -> int:
        units = self.units(piece)
        return sum(units * home.entry.model_heads * home.entry.row_bytes for home in self._homes[piece.kind])

    def units(self, piece: Piece) -> int:
        return len(self._units(piece))

    def grows(self, kind: str) -> bool:
        return self._kinds[kind].grows

    def has(self, piece: Piece) -> bool:
        """Whether there could be such a piece: a kind of the model, whole units of it."""
        return piece.kind in self._homes and 0 <= piece.begin < piece.end and self._is_whole(piece)

    def _is_whole(self, piece: Piece) -> bool:
        folded = self._kinds[piece.kind].tokens_per_unit
        return not (piece.begin % folded or piece.end % folded)

    def _units(self, piece: Piece) -> range:
        folded = self._kinds[piece.kind].tokens_per_unit
        return range(piece.begin // folded, piece.end // folded)

    # ── between records and pieces ────────────────────────────────────────

    def gather(self, record: Bytes, spans: Sequence[Span], piece: Piece, data: Bytes) -> int:
        """Copies what a record has of a piece into the piece's bytes. Returns how many units of a layer it has."""
        found = 0
        for heads, pages, inside, at in self._shared(record, spans, piece, data):
            heads[at] = pages[inside]
            found = max(found, len(at))
        return found

    def scatter(self, record: Bytes, spans: Sequence[Span], piece: Piece, data: Bytes) -> None:
        """The inverse of `gather`."""
        for heads, pages, inside, at in self._shared(record, spans, piece, data):
            pages[inside] = heads[at]

    def _shared(
        self, record: Bytes, spans: Sequence[Span], piece: Piece, data: Bytes
    ) -> Iterator[tuple[Bytes, Bytes, tuple[npt.NDArray[np.int64], ...], npt.NDArray[np.int64]]]:
        """For each part: (heads in the piece, pages of the record, where there, where in the piece)."""
        numbers = np.asarray(self._units(piece), dtype=np.int64)
        offset, places = 0, {(span.stage, span.kind): (span, own) for span, own in _divided(record, spans)}
        for home in self._homes[piece.kind]:
            entry = home.entry
            shape = (len(numbers), entry.model_heads, entry.row_bytes)
            whole = data[offset : offset + math.prod(shape)].reshape(shape)
            offset += math.prod(shape)
            span, own = places[home.stage, home.kind]
            page, inside = np.searchsorted(span.logical, numbers // entry.units), numbers % entry.units
            is_here = np.isin(numbers // entry.units, span.logical)
            for begin, pages in _areas(own, span, entry):
                heads = whole[:, begin : begin + pages.shape[2]]
                yield heads, pages, (page[is_here], inside[is_here]), is_here.nonzero()[0]

    # ── between records and ranks ─────────────────────────────────────────

    def cut(self, record: Bytes, spans: Sequence[Span], rank: int) -> list[Bytes]:
        """What a rank's pages hold of a record: for each span (page, group, byte)."""
        found = []
        for span, own in _divided(record, spans):
            pages = np.zeros((len(span.logical), span.plan.groups, span.plan.page_bytes), dtype=np.uint8)
            for entry in span.plan.manifest:
                heads = np.concatenate([area for _, area in _areas(own, span, entry)], axis=2)
                kept = entry.heads_of(rank, self.ranks)
                _part(pages, entry)[:, :, : len(kept)] = heads[:, :, kept.start : kept.stop]
            found.append(pages)
        return found

    def join(self, record: Bytes, spans: Sequence[Span], rank: int, pages: Sequence[Bytes]) -> None:
        """The inverse of `cut`: copies a rank's pages into their places in a record."""
        for (span, own), each in zip(_divided(record, spans), pages, strict=True):
            for entry in span.plan.manifest:
                kept = entry.heads_of(rank, self.ranks)
                for begin, area in _areas(own, span, entry):
                    first, last = max(begin, kept.start), min(begin + area.shape[2], kept.stop)
                    if first < last:
                        part = _part(each, entry)[:, :, first - kept.start : last - kept.start]
                        area[:, :, first - begin : last - begin] = part


def _entry(home: Home) -> Entry:
    return home.entry


def _divided(record: Bytes, spans: Sequence[Span]) -> Iterator[tuple[Span, Bytes]]:
    """Each span's bytes: (page, byte)."""
    begin = 0
    for span in spans:
        yield span, record[begin : begin + span.bytes].reshape(len(span.logical), span.plan.unique_page_bytes)
        begin += span.bytes


def _areas(own: Bytes, span: Span, entry: Entry) -> Iterator[tuple[int, Bytes]]:
    """Where a record has a part: (first head, (page, unit, head, byte)), on the first rank's page and after it."""
    groups, page_bytes = span.plan.groups, span.plan.page_bytes
    yield 0, _part(own[:, : groups * page_bytes].reshape(-1, groups, page_bytes), entry)
    begin = groups * page_bytes
    for other in span.plan.manifest:
        rest = other.model_heads - other.heads
        size = other.units * rest * other.row_bytes
        if other == entry and rest:
            yield entry.heads, own[:, begin : begin + size].reshape(-1, entry.units, rest, entry.row_bytes)
        begin += size


def _part(pages: Bytes, entry: Entry) -> Bytes:
    """(page, unit, head, byte) of one part, in a rank's pages (page, group, byte)."""
    part = pages[:, entry.group, entry.offset_bytes : entry.offset_bytes + entry.bytes]
    return part.reshape(len(pages), entry.units, entry.heads, entry.row_bytes)


# ── what to exchange ──────────────────────────────────────────────────────


def pieces_of(spans: Sequence[Span]) -> tuple[Piece, ...]:
    """The tokens that a record's pages hold, on any stage."""
    found: set[Piece] = set()
    for span in spans:
        tokens = span.plan.page_tokens
        found |= {Piece(span.plan.name, begin * tokens, end * tokens) for begin, end in _runs(span.logical)}
    return tuple(sorted(found))


def page_sizes(plan: Plan) -> dict[str, list[int]]:
    """Tokens per page by kind, over all stages."""
    found: dict[str, set[int]] = {}
    for kind in (kind for stage in plan.stages for kind in stage.kinds):
        found.setdefault(kind.name, set()).add(kind.page_tokens)
    return {name: sorted(sizes) for name, sizes in found.items()}


def common_boundary(plan: Plan, unit_tokens: int, pages: Mapping[str, Sequence[int]], most_tokens: int) -> int:
    """The greatest boundary up to `most_tokens` at which a plan with other units and pages keeps all that this plan's
    pages hold of it; 0: none."""
    step = math.lcm(plan.reuse_unit_tokens, unit_tokens)
    last = most_tokens // step * step
    tries = range(last, max(0, last - MOST_TRIES * step), -step)
    return next((boundary for boundary in tries if not lacking(plan, pages, boundary)), 0)


def lacking(plan: Plan, pages: Mapping[str, Sequence[int]], boundary: int) -> str:
    """What this plan's pages need at a boundary and a plan with other pages does not keep; empty: nothing."""
    for own in (kind for stage in plan.stages for kind in stage.kinds if not kind.kind.grows):
        for theirs in pages.get(own.name, ()):
            kept = _kept(own.kind, theirs, boundary)
            for begin, end in _kept(own.kind, own.page_tokens, boundary):
                if not any(first <= begin and end <= last for first, last in kept):
                    return (
                        f"{own.name}: pages of {own.page_tokens} tokens hold [{begin}, {end}), pages of {theirs} do "
                        f"not keep all of it: choose --page-tokens {own.name}={theirs}"
                    )
    return ""


def _kept(kind: Kind, page_tokens: int, boundary: int) -> list[Interval]:
    return [(begin * page_tokens, end * page_tokens) for begin, end in _runs(tail_pages(kind, page_tokens, boundary))]


def _runs(pages: npt.NDArray[np.int64]) -> list[Interval]:
    """Pages that follow each other: [first, last + 1)."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(pages, breaks) if len(run)]
