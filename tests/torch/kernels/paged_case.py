"""A random batch over pages in random order, and what attention over it must give, by the definition, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from quire.plan.layout import GRANULE_BYTES
from quire.worker.backends.attention import Scores
from quire.worker.kernels.shape import DeviceTable
from quire.worker.kernels.work import QueryRows, Sight

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Heads:
    query: int = 4
    key: int = 2
    width: int = 16
    value_width: int = 16


class Pages:
    """Rows of tokens in an arena that is NaN where nothing was written. Tables wrap round after `columns`, if given."""

    def __init__(
        self,
        ends: list[int],
        heads: Heads,
        page_tokens: int = 16,
        dtype: torch.dtype = torch.float32,
        columns: int = 0,
        sink_columns: int = 0,
    ) -> None:
        random = np.random.default_rng(sum(ends))
        granule = GRANULE_BYTES // dtype.itemsize
        key_size, value_size = (page_tokens * heads.key * width for width in (heads.width, heads.value_width))
        page_granules = -(-(key_size + value_size) // granule) + 1
        width = columns or max(1, -(-max(ends) // page_tokens))
        order = random.permutation(len(ends) * width + 2)[: len(ends) * width].astype(np.int32)
        self.arena = torch.full((page_granules * granule * (len(ends) * width + 2),), torch.nan, dtype=dtype).to(DEVICE)
        places = self.arena.numel() // granule - page_granules + 1
        self.key = self.arena.as_strided((places, page_tokens, heads.key, heads.width),
                                         (granule, heads.key * heads.width, heads.width, 1))  # fmt: skip
        self.value = self.arena.as_strided((places, page_tokens, heads.key, heads.value_width),
                                           (granule, heads.key * heads.value_width, heads.value_width, 1),
                                           key_size)  # fmt: skip
        addresses = torch.from_numpy(order.reshape(len(ends), width) * page_granules).to(DEVICE)
        self.table = DeviceTable(addresses, page_tokens, sink_columns, bool(columns))
        self.keys = [torch.randn(end, heads.key, heads.width).to(DEVICE, dtype) for end in ends]
        self.values = [torch.randn(end, heads.key, heads.value_width).to(DEVICE, dtype) for end in ends]

    def column(self, page: int) -> int:
        sinks, ring = self.table.sink_columns, self.table.ring_columns
        return page if page < sinks or not ring else sinks + (page - sinks) % ring

    def fill(self) -> None:
        """Tokens into their slots one by one, so that later ones overwrite what a ring of columns forgot."""
        size = self.table.page_tokens
        for row, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            for token in range(len(keys)):
                address = int(self.table.addresses[row, self.column(token // size)])
                self.key[address, token % size], self.value[address, token % size] = keys[token], values[token]

    def _slot(self, row: int) -> tuple[int, int]:
        """Of its newest token."""
        page, slot = divmod(len(self.keys[row]) - 1, self.table.page_tokens)
        return int(self.table.addresses[row, self.column(page)]), slot

    def newest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(row, head, width) as they lie in their slots."""
        slots = [self._slot(row) for row in range(len(self.keys))]
        return torch.stack([self.key[slot] for slot in slots]), torch.stack([self.value[slot] for slot in slots])

    def take_newest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same; their slots are NaN again."""
        new = self.newest()
        for row in range(len(self.keys)):
            self.key[self._slot(row)] = self.value[self._slot(row)] = torch.nan
        return new


def rows_of(counts: list[int], ends: list[int]) -> QueryRows:
    many = np.array(counts)
    return QueryRows(np.arange(len(many)), np.cumsum(many) - many, np.array(ends) - many, many)


def by_definition(
    pages: Pages, query: torch.Tensor, counts: list[int], ends: list[int], sight: Sight, scores: Scores
) -> torch.Tensor:
    parts = [
        _row(queries.double(), keys.double(), values.double(), end, sight, scores)
        for queries, keys, values, end in zip(query.split(counts), pages.keys, pages.values, ends, strict=True)
    ]
    return torch.cat(parts)


def _row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, end: int, sight: Sight, scores: Scores
) -> torch.Tensor:
    repeat = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    raw = torch.einsum("qhd,khd->hqk", query, keys) * scores.scale
    if scores.softcap is not None:
        raw = scores.softcap * torch.tanh(raw / scores.softcap)
    if scores.slopes is not None:
        distance = torch.arange(end, device=DEVICE) - torch.arange(end - len(query), end, device=DEVICE)[:, None]
        raw = raw + scores.slopes.double()[:, None, None] * distance
    seen = torch.tensor([[_sees(position, token, sight) for token in range(end)]
                         for position in range(end - len(query), end)], dtype=torch.bool, device=DEVICE)  # fmt: skip
    raw = raw.masked_fill(~seen.view(len(query), end), -torch.inf)
    if scores.sinks is not None:
        raw = torch.cat([raw, scores.sinks.double()[:, None, None].expand(*raw.shape[:2], 1)], dim=-1)
    return torch.einsum("hqk,khd->qhd", torch.softmax(raw, dim=-1)[..., :end], values)


def _sees(position: int, token: int, sight: Sight) -> bool:
    if token > position:
        return False
    if sight.chunk:
        return token // sight.chunk == position // sight.chunk
    return not sight.window or token > position - sight.window or token < sight.sinks
