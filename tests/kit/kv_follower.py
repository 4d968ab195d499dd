"""Reads KV events as another project's router would: with a decoder of its own, from bytes alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

END = b"\xff" * 8


def decoded(data: bytes) -> Any:
    value, rest = _value(data)
    assert not rest, f"{len(rest)} bytes too many"
    return value


def _value(data: bytes) -> tuple[Any, bytes]:
    """The part of MessagePack that events use."""
    head, rest = data[0], data[1:]
    if head < 0x80:
        return head, rest
    if 0x90 <= head < 0xA0:
        return _items(head & 0x0F, rest)
    if 0xA0 <= head < 0xC0:
        size = head & 0x1F
        return rest[:size].decode(), rest[size:]
    if head == 0xC0:
        return None, rest
    for code, form in ((0xCB, ">d"), (0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")):
        if head == code:
            size = struct.calcsize(form)
            return struct.unpack(form, rest[:size])[0], rest[size:]
    size = {0xDC: 2, 0xDD: 4}[head]
    return _items(int.from_bytes(rest[:size], "big"), rest[size:])


def _items(count: int, data: bytes) -> tuple[list[Any], bytes]:
    found = []
    for _ in range(count):
        one, data = _value(data)
        found.append(one)
    return found, data


class KvFollower:
    """The blocks of one server, by hash: all tokens up to the block's end, and its salt."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[tuple[int, ...], str]] = {}
        self.expected = 0
        """The number of the next batch."""

    def has_gap(self, number: bytes) -> bool:
        return int.from_bytes(number, "big") > self.expected

    def read(self, number: bytes, batch: bytes) -> None:
        if int.from_bytes(number, "big") < self.expected:
            return
        assert not self.has_gap(number)
        self.expected += 1
        _, events, rank = decoded(batch)
        assert rank == 0
        for name, *fields in events:
            {"BlockStored": self._store, "BlockRemoved": self._remove, "AllBlocksCleared": self.blocks.clear}[name](
                *fields
            )

    def repair(self, replayed: Iterable[tuple[bytes, bytes]]) -> None:
        *batches, (end, nothing) = replayed
        assert (end, nothing) == (END, b"")
        for number, batch in batches:
            self.read(number, batch)

    def _store(
        self,
        hashes: list[int],
        parent: int | None,
        tokens: list[int],
        size: int,
        lora_id: None,
        medium: str,
        lora_name: None,
        extra: list[list[str]] | None,
    ) -> None:
        assert (lora_id, medium, lora_name) == (None, "GPU", None)
        assert len(tokens) == size * len(hashes)
        known = () if parent is None else self.blocks[parent][0]
        for place, one in enumerate(hashes):
            assert one not in self.blocks
            assert one < 1 << 63
            known += tuple(tokens[place * size : (place + 1) * size])
            self.blocks[one] = known, extra[place][0] if extra else ""

    def _remove(self, hashes: list[int], medium: str) -> None:
        assert medium == "GPU"
        for one in hashes:
            del self.blocks[one]


def replayed(context: Any, address: str | None, first: int, seconds: float) -> list[tuple[bytes, bytes]]:
    """Batches from `first` on, as readers ask for them: DEALER with an empty frame, because one question has many
    answers. `seconds`: to wait for each."""
    import zmq  # tests of the encoding alone need none

    asking = context.socket(zmq.DEALER)
    asking.rcvtimeo = int(1000 * seconds)
    asking.connect(address)
    asking.send_multipart((b"", first.to_bytes(8, "big")))
    batches: list[tuple[bytes, bytes]] = []
    while not batches or batches[-1][0] != END:
        _, number, batch = asking.recv_multipart()
        batches.append((number, batch))
    asking.close(linger=0)
    return batches
