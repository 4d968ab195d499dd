"""Rows with states in pages in random order, in an arena that is NaN elsewhere; and recurrences by their definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quire.core.step import Step, TableView
from quire.plan.layout import GRANULE_BYTES
from quire.worker.backends.recurrent import Columns, Matrices, Recurrence
from quire.worker.backends.states import StateRows, rows_of
from quire.worker.pages.arena import Cut, PartView
from quire.worker.pages.captures import KindCaptures

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pages:
    """One page a row, one a draft and one a capture, each of `width` numbers; rows come in with random states.

    `captures`: (row, tokens), in ascending order.
    """

    def __init__(
        self,
        counts: list[int],
        drafts: list[int],
        width: int,
        dtype: torch.dtype,
        captures: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.counts, self.drafts, self.width, self.captures = counts, drafts, width, list(captures)
        self.granule = GRANULE_BYTES // dtype.itemsize
        page_granules, columns = -(-width // self.granule) + 1, 1 + max(drafts)
        own = len(counts) * columns
        order = np.random.default_rng(0).permutation(own + len(self.captures) + 1)[:-1].astype(np.int32)
        self.addresses = order[:own].reshape(len(counts), 1, columns) * page_granules
        self.captured_addresses = order[own:] * page_granules
        numbers = (len(order) + 1) * page_granules * self.granule
        self.arena = torch.full((numbers,), torch.nan, dtype=dtype, device=DEVICE)
        for row in range(len(counts)):
            self.page(row, 0)[:] = torch.randn(width)
        self.before = self.arena.clone()

    def page(self, row: int, draft: int, arena: torch.Tensor | None = None) -> torch.Tensor:
        return self._at(int(self.addresses[row, 0, draft]), self.arena if arena is None else arena)

    def _at(self, address: int, arena: torch.Tensor) -> torch.Tensor:
        return arena[address * self.granule : address * self.granule + self.width]

    def rows(self) -> StateRows:
        each, counts, drafts = np.arange(len(self.counts)), np.array(self.counts), np.array(self.drafts)
        ones = np.ones(len(counts), dtype=np.int64)
        token_ids = np.zeros(sum(self.counts), dtype=np.int32)
        step = Step(0, each, ones, counts, ones.astype(np.bool_), ones, token_ids, drafts=drafts)
        captured = None
        if self.captures:
            entries, tokens = np.array(self.captures).T
            captured = KindCaptures(entries, tokens, self.captured_addresses[:, None])
        return rows_of(step, TableView(self.addresses, 0), DEVICE, captured)

    def matrices(self, heads: int, keys_first: bool) -> Matrices:
        places = (self.arena.numel() - self.width) // self.granule + 1
        shape = (places, 1, heads, self.width // heads)
        tensor = self.arena.as_strided(shape, (self.granule, self.width, shape[3], 1))
        return Matrices(PartView(0, Cut(0, self.width * self.arena.element_size()), tensor, tensor), keys_first)

    def columns(self, offsets: torch.Tensor) -> Columns:
        return Columns(self.arena, offsets.to(DEVICE, torch.int32), 0, self.granule)

    def expect(self, row: int, draft: int, numbers: torch.Tensor) -> None:
        """What the page must hold afterwards."""
        self.page(row, draft, self.before)[:] = numbers.reshape(-1).to(self.before.dtype)

    def expect_captured(self, row: int, tokens: int, numbers: torch.Tensor) -> None:
        """What the page of a capture must hold afterwards, if there is one after that many of the row's tokens."""
        if (row, tokens) in self.captures:
            address = int(self.captured_addresses[self.captures.index((row, tokens))])
            self._at(address, self.before)[:] = numbers.reshape(-1).to(self.before.dtype)

    def check(self, tolerance: float) -> None:
        """Every page as expected, and nothing else touched."""
        torch.testing.assert_close(self.arena, self.before, rtol=tolerance, atol=tolerance, equal_nan=True)


def recurrence_by_definition(pages: Pages, tokens: Recurrence, keys_first: bool) -> torch.Tensor:
    """Token by token in float64; expects what each page holds afterwards."""
    out = torch.empty(tokens.value.shape, dtype=torch.float64, device=DEVICE)
    heads, values = tokens.value.shape[1:]
    keys, begin = tokens.key.shape[2], 0
    for row, (count, drafts) in enumerate(zip(pages.counts, pages.drafts, strict=True)):
        state = pages.page(row, 0).double().clone().view(heads, *((keys, values) if keys_first else (values, keys)))
        state = state if keys_first else state.transpose(1, 2)
        for token in range(count):
            state, out[begin + token] = _one(state, tokens, begin + token)
            kept = state if keys_first else state.transpose(1, 2)
            pages.expect_captured(row, token + 1, kept)
            if token >= count - drafts - 1:
                pages.expect(row, token - (count - drafts - 1), kept)
        begin += count
    return out


def _one(state: torch.Tensor, tokens: Recurrence, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    share = state.shape[0] // tokens.key.shape[1]
    query, key = (part[place].double().repeat_interleave(share, 0) for part in (tokens.query, tokens.key))
    if tokens.is_normalised:
        query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
    value, decay, weight = (part[place].double() for part in (tokens.value, tokens.decay, tokens.weight))
    state = state * (decay.exp()[..., None] if decay.dim() == 2 else decay.exp()[:, None, None])
    known = torch.einsum("hkv,hk->hv", state, key) if tokens.has_delta else torch.zeros_like(value)
    state = state + torch.einsum("hk,hv->hkv", key, weight[:, None] * (value - known))
    result = tokens.scale * torch.einsum("hkv,hk->hv", state, query)
    return state, result if tokens.skip is None else result + tokens.skip.double()[:, None] * value


def convolution_by_definition(
    pages: Pages, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, has_silu: bool
) -> torch.Tensor:
    """Pages are (channel, column)."""
    channels, taps = weight.shape
    parts, begin = [], 0
    for row, (count, drafts) in enumerate(zip(pages.counts, pages.drafts, strict=True)):
        before = pages.page(row, 0).double().clone().view(channels, taps - 1)
        seen = torch.cat([before, inputs[begin : begin + count].double().transpose(0, 1)], dim=1)
        windows = seen.unfold(1, taps, 1) if count else seen.new_empty(channels, 0, taps)
        parts.append((windows * weight.double()[:, None]).sum(-1).transpose(0, 1))
        for draft in range(drafts + 1 if count else 0):
            end = taps - 1 + count - drafts + draft
            pages.expect(row, draft, seen[:, end - taps + 1 : end])
        for token in range(1, count + 1):
            pages.expect_captured(row, token, seen[:, token : token + taps - 1])
        begin += count
    out = torch.cat(parts)
    out = out if bias is None else out + bias.double()
    return torch.nn.functional.silu(out) if has_silu else out
