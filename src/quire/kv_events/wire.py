"""Events as bytes: the positional arrays that routers for other engines decode.

payload   [seconds, [event, …], rank]                                                     one batch, MessagePack
event     ["BlockStored", hashes, parent, tokens, block size, lora id, medium, lora name, extra keys]
          ["BlockRemoved", hashes, medium]
          ["AllBlocksCleared"]
message   topic ┃ sequence number, 8 bytes, the greatest first ┃ payload                 three frames
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from quire.kv_events.collector import AllCleared, BlockEvent, BlocksRemoved
from quire.options.extras import naming_extras

MEDIUM = "GPU"
"""Where blocks are: readers weigh the pool's more than those of tiers, which are not reported."""
KEPT_BATCHES = 10_000
SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""The sequence number after the last batch of a replay."""


def payload(seconds: float, events: Sequence[BlockEvent], rank: int = 0) -> bytes:
    with naming_extras("--kv-events"):
        import msgpack
    packed: bytes = msgpack.packb([seconds, [_array(event) for event in events], rank])
    return packed


def _array(event: BlockEvent) -> list[Any]:
    if isinstance(event, AllCleared):
        return ["AllBlocksCleared"]
    if isinstance(event, BlocksRemoved):
        return ["BlockRemoved", event.hashes, MEDIUM]
    extra = [(event.salt,)] * len(event.hashes) if event.salt else None
    tokens = event.tokens.tolist()
    return ["BlockStored", event.hashes, event.parent, tokens, event.block_tokens, None, MEDIUM, None, extra]


class Journal:
    """Numbers batches, and keeps the latest for readers that have missed some."""

    def __init__(self, kept: int = KEPT_BATCHES) -> None:
        self._batches: deque[tuple[bytes, bytes]] = deque(maxlen=kept)
        self._next = 0

    def add(self, batch: bytes) -> tuple[bytes, bytes]:
        """The batch with its number before it."""
        numbered = self._next.to_bytes(SEQUENCE_BYTES, "big"), batch
        self._next += 1
        self._batches.append(numbered)
        return numbered

    def since(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Batches from this number on that are still kept, then the end."""
        yield from (one for one in self._batches if one[0] >= number)
        yield END, b""
