"""What a step moves besides tokens, as integers: each move is a head of a few numbers, and an array.

copies      stage, kind                               source pages, then as many target pages
clears      stage, kind                               pages
captures    entry, tokens, stage, kind                pages
stores      number, after, blocks, (stage, kind, count) of each part       blocks, then the pages of each part
loads       number, row, units, tokens, held tokens, blocks of each record          blocks of all records
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from quire.core.step import Capture, Ints, Step
from quire.core.tier import Load, Place, Staged, Store
from quire.ranks.ints import IntReader, IntWriter


class Move(NamedTuple):
    head: tuple[int, ...]
    numbers: Ints


Moves = tuple[list[Move], ...]
"""Copies, clears, captures, stores, loads."""


def moves_of(step: Step, loads: Sequence[Staged]) -> Moves:
    """`loads`: where the records of the step's loads are."""
    return (
        [Move((stage, kind), np.concatenate([source, target])) for stage, kind, source, target in step.copies],
        [Move((stage, kind), pages) for stage, kind, pages in step.clears],
        [Move((one.entry, one.tokens, one.stage, one.kind), one.pages) for one in step.captures],
        [_of_store(store) for store in step.stores],
        [_of_load(staged, row) for staged, (_, row) in zip(loads, step.loads, strict=True)],
    )


def add_moves(writer: IntWriter, moves: Moves) -> None:
    """Nothing is written where there is none: the reader knows how many there are of each."""
    for own in moves:
        if own:
            for values in ([len(one.head) for one in own], [number for one in own for number in one.head]):
                writer.add(np.array(values))
            writer.add(np.array([len(one.numbers) for one in own]))
            writer.add(np.concatenate([one.numbers for one in own]))


def take_moves(reader: IntReader, sizes: Sequence[int], step: Step) -> tuple[Step, tuple[Staged, ...]]:
    """The step with its moves, and where the records of its loads are."""
    copies, clears, captures, stores, loads = (_take(reader) if size else [] for size in sizes)
    moved = replace(
        step,
        copies=tuple(_copy(one) for one in copies),
        clears=tuple((one.head[0], one.head[1], one.numbers) for one in clears),
        captures=tuple(_capture(one) for one in captures),
        stores=tuple(_store(one) for one in stores),
        loads=tuple((one.head[0], one.head[1]) for one in loads),
    )
    return moved, tuple(_staged(one) for one in loads)


def _take(reader: IntReader) -> list[Move]:
    widths, heads, lengths, numbers = (reader.take() for _ in range(4))
    cut_heads = np.split(heads, np.cumsum(widths)[:-1])
    cut = np.split(numbers, np.cumsum(lengths)[:-1])
    return [Move(tuple(head.tolist()), own) for head, own in zip(cut_heads, cut, strict=True)]


def _copy(move: Move) -> tuple[int, int, Ints, Ints]:
    source, target = np.split(move.numbers, 2)
    return move.head[0], move.head[1], source, target


def _capture(move: Move) -> Capture:
    entry, tokens, stage, kind = move.head
    return Capture(entry, tokens, stage, kind, move.numbers)


def _of_store(store: Store) -> Move:
    parts = [number for stage, kind, pages in store.pages for number in (stage, kind, len(pages))]
    head = (store.place.number, store.after, len(store.place.blocks), *parts)
    return Move(head, np.concatenate([np.array(store.place.blocks), *(pages for *_, pages in store.pages)]))


def _store(move: Move) -> Store:
    number, after, blocks, *rest = move.head
    parts = list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    first, *pages = np.split(move.numbers, np.cumsum([blocks, *(count for *_, count in parts)])[:-1])
    own = tuple((stage, kind, some) for (stage, kind, _), some in zip(parts, pages, strict=True))
    return Store(Place(number, tuple(first.tolist())), own, after)


def _of_load(staged: Staged, row: int) -> Move:
    load, sizes = staged.load, [len(blocks) for blocks in staged.records]
    blocks = [block for record in staged.records for block in record]
    return Move((load.number, row, len(load.keys), load.tokens, load.held_tokens, *sizes), np.array(blocks))


def _staged(move: Move) -> Staged:
    """Followers know how many units a load has, not their keys."""
    number, _, units, tokens, held, *sizes = move.head
    blocks = tuple(tuple(own.tolist()) for own in np.split(move.numbers, np.cumsum(sizes)[:-1]))
    return Staged(Load(number, "", (b"",) * units, tokens, b"", held), blocks)
