"""A cache on disk for several ranks: a record is there if each rank has its part, and gone if one has not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quire.core.connector import Layout, TierFailed
from quire.movers.disk import DiskFolder
from quire.ranks.channel import Json
from quire.ranks.stores import Answers, FollowedStore, RankedStore, layout_of_rank

LAYOUT = Layout("5eed" * 16, 16, 256, 0, "")
NAME, OTHER = b"u" + bytes(40), b"u" + bytes(39) + b"1"
BLOCKS, BLOCK_BYTES = 8, 64
BYTES = 2 * BLOCK_BYTES + 10


class Memory:
    """Blocks of one rank, each with its own bytes."""

    def __init__(self, seed: int) -> None:
        self.bytes = np.random.default_rng(seed).integers(0, 256, (BLOCKS, BLOCK_BYTES)).astype(np.uint8)

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]:
        sizes = [min(BLOCK_BYTES, size_bytes - place * BLOCK_BYTES) for place in range(len(blocks))]
        return [memoryview(self.bytes[block])[:size] for block, size in zip(blocks, sizes, strict=True)]

    def blocks_of(self, parts: Sequence[memoryview]) -> list[int]:
        begin = self.bytes.ctypes.data
        offsets = [np.frombuffer(part, np.uint8).ctypes.data - begin for part in parts]
        return [offset // BLOCK_BYTES for offset in offsets if 0 <= offset < self.bytes.size]


class Ranks:
    """Stores of all ranks in one folder, as on one machine."""

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        self.memories = [Memory(rank) for rank in range(ranks)]
        self.others = [
            FollowedStore(DiskFolder(folder), memory, rank, ranks) for rank, memory in enumerate(self.memories) if rank
        ]
        self.store = RankedStore(DiskFolder(folder), self.memories[0], ranks, self.order)
        self.store.register(LAYOUT)

    def order(self, order: Json) -> Answers:
        answers = [other.follow({**order, "number": 7}) for other in self.others]
        assert all(answer["number"] == 7 for answer in answers)
        return lambda: answers

    def write(self, name: bytes, blocks: Sequence[int]) -> None:
        self.store.write(name, self.memories[0].parts(blocks, BYTES))

    def read(self, name: bytes, blocks: Sequence[int]) -> bool:
        return self.store.read(name, self.memories[0].parts(blocks, BYTES))

    def bytes_in(self, blocks: Sequence[int]) -> list[bytes]:
        return [b"".join(memory.parts(blocks, BYTES)) for memory in self.memories]


def part_of(folder: Path, name: bytes, rank: int, ranks: int = 2) -> Path:
    return folder / layout_of_rank(LAYOUT, rank, ranks).fingerprint[:32] / f"{name.hex()}.record"


def test_each_rank_reads_the_part_that_it_has_written(tmp_path: Path) -> None:
    """In whichever blocks the record was and is; after a restart too."""
    ranks = Ranks(tmp_path, 3)
    written = ranks.bytes_in([5, 1, 6])
    ranks.write(NAME, [5, 1, 6])
    assert all(part_of(tmp_path, NAME, rank, 3).exists() for rank in range(3))
    again = Ranks(tmp_path, 3)
    for memory in again.memories:
        memory.bytes[:] = 0
    assert again.store.has([NAME, OTHER]) == [True, False]
    assert again.read(NAME, [0, 7, 2])
    assert again.bytes_in([0, 7, 2]) == written
    assert len(set(written)) == 3


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("damage", ["missing", "damaged", "of the other rank"])
def test_a_record_without_a_good_part_of_one_rank_is_gone_on_all(rank: int, damage: str, tmp_path: Path) -> None:
    """And can be written again. Red if a load took what the other ranks have, or rank 0 went on to find it."""
    ranks = Ranks(tmp_path)
    ranks.write(NAME, [0, 1, 2])
    part = part_of(tmp_path, NAME, rank)
    if damage == "missing":
        part.unlink()
    elif damage == "damaged":
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    else:
        shutil.copyfile(part_of(tmp_path, NAME, 1 - rank), part)
    assert not ranks.read(NAME, [3, 4, 5])
    assert ranks.store.has([NAME]) == [False]
    assert not any(part_of(tmp_path, NAME, one).exists() for one in range(2))
    ranks.write(NAME, [0, 1, 2])
    assert ranks.read(NAME, [3, 4, 5])


def test_a_part_that_cannot_be_written_leaves_no_record(tmp_path: Path) -> None:
    """Rank 0 writes last: what it has, all have had."""
    ranks = Ranks(tmp_path)
    shutil.rmtree(part_of(tmp_path, NAME, 1).parent)
    with pytest.raises(TierFailed, match="rank 1: cannot write to"):
        ranks.write(NAME, [0, 1, 2])
    assert ranks.store.has([NAME]) == [False]


def test_other_splits_find_nothing_and_a_dropped_scope_is_gone_on_all(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.write(NAME, [0, 1, 2])
    assert Ranks(tmp_path, 3).store.has([NAME]) == [False]
    ranks.store.forget(b"")
    assert not list(tmp_path.rglob("*.record"))


def test_a_trial_of_the_store_is_rank_0s_own(tmp_path: Path) -> None:
    """Its bytes lie in no block that others have. Red if they were looked for there."""
    ranks, data = Ranks(tmp_path), bytearray(b"trial")
    ranks.store.write(OTHER, [memoryview(data)])
    assert ranks.store.read(OTHER, [memoryview(data)])
    assert not part_of(tmp_path, OTHER, 1).exists()
