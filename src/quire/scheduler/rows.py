"""Running requests as columns of numbers. A request keeps its row as long as it runs.

known      tokens that exist: the prompt, and outputs that came back
computed   tokens that were scheduled; those beyond `settled` are in flight
settled    tokens that are computed and no longer in flight on the device
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.core.request import MOST_STOP_TOKENS, Request
from quire.core.step import SAMPLED
from quire.core.units import ceil_div

Ints = npt.NDArray[np.int64]
NO_TOKEN = -1
"""Fills the columns of stop tokens that a request does not use; no token has this number."""
NOT_YET = np.int32(SAMPLED)
ONE = np.array(1)
"""An array without axes: numpy takes half as long with it as with a plain number."""
LEAST_CHUNK = 32
"""A chunk of a prompt has at least 1 ÷ this of a step's tokens on a pipeline: smaller ones save no time."""
NEVER = np.iinfo(np.int64).max
"""In `next_unit` and `next_capture`: there is none."""


class Rows:
    """One place per running request in each column."""

    def __init__(self, count: int, step_tokens: int = 1, microbatches: int = 1) -> None:
        """`microbatches`: steps in flight among which rows are divided, for a pipeline; 1: each step may have all."""
        self.count, self._step_tokens, self.microbatches = count, step_tokens, microbatches
        self.prompt = np.zeros(count, dtype=np.int64)
        self.known = np.zeros(count, dtype=np.int64)
        self.computed = np.zeros(count, dtype=np.int64)
        self.settled = np.zeros(count, dtype=np.int64)
        self.limit = np.zeros(count, dtype=np.int64)
        self.expected = np.zeros(count, dtype=np.int64)
        """Tokens that are known, or that steps in flight will sample, without drafts."""
        self.drafts = np.zeros(count, dtype=np.int64)
        """Draft tokens in flight: the result of their step says how many are accepted."""
        self.next_unit = np.full(count, NEVER, dtype=np.int64)
        """Where the next unit of its prompt ends that goes to the prefix index once it has settled."""
        self.next_capture = np.full(count, NEVER, dtype=np.int64)
        """Tokens after which its next recurrent state is captured for the cache."""
        self.most = np.zeros(count, dtype=np.int64)
        """The most tokens it may compute: its limit less the last token, which is never computed."""
        self.chunk = np.full(count, step_tokens, dtype=np.int64)
        """The most tokens it may have in flight: a step's, or what its request says."""
        self.is_loading = np.zeros(count, dtype=bool)
        """A tier is loading its first tokens: it holds their pages and computes nothing."""
        self.is_reserved = np.zeros(count, dtype=bool)
        """It is to stay until it ends (it loaded tokens, or was preempted often): admission counts its whole length."""
        self.may_draft = np.zeros(count, dtype=bool)
        self.epoch = np.zeros(count, dtype=np.int64)
        self.stops = np.full((count, MOST_STOP_TOKENS), NO_TOKEN, dtype=np.int64)
        self.outputs = np.zeros((count, 64), dtype=np.int32)
        self.output_counts = np.zeros(count, dtype=np.int64)
        self.latest = np.zeros(count, dtype=np.int32)
        """The last known token of each row: what a row in decode computes next."""
        self.requests: dict[int, Request] = {}
        self.row_of: dict[str, int] = {}
        self._free = list(range(count - 1, -1, -1))

    def has_room(self, count: int = 1) -> bool:
        return len(self._free) >= count

    def enter(self, request: Request, outputs: npt.NDArray[np.int32]) -> int:
        """A row for a request that has generated `outputs` before (if it was preempted)."""
        row = self._free.pop()
        self.requests[row] = request
        self.row_of[request.name] = row
        self.prompt[row] = len(request.prompt)
        self.known[row] = self.expected[row] = len(request.prompt) + len(outputs)
        self.computed[row] = self.settled[row] = self.drafts[row] = 0
        self.next_unit[row] = self.next_capture[row] = NEVER
        self.is_loading[row] = self.is_reserved[row] = False
        self.may_draft[row] = request.sampling.allows_drafts
        self.limit[row] = limit = request.limit
        self.most[row] = limit - 1
        self.chunk[row] = min(request.chunk_tokens or self._step_tokens, self._step_tokens)
        self.stops[row] = NO_TOKEN
        if request.stop_tokens:
            self.stops[row, : len(request.stop_tokens)] = request.stop_tokens
        if len(outputs):
            self._widen(len(outputs))
            self.outputs[row, : len(outputs)] = outputs
        self.output_counts[row] = len(outputs)
        self.latest[row] = outputs[-1] if len(outputs) else request.prompt[-1]
        return row

    def remaining(self, rows: Ints) -> Ints:
        """Tokens that rows can compute now; a row has at most one step's tokens in flight."""
        ends = np.minimum(self.expected[rows], self.most[rows])
        remaining: Ints = np.minimum(ends, self.settled[rows] + self.chunk[rows]) - self.computed[rows]
        return remaining if self.microbatches == 1 else self._divided(rows, remaining)

    def _divided(self, rows: Ints, remaining: Ints) -> Ints:
        """What a step computes of it with others in flight on a pipeline: one of the equal chunks of each prompt, and a
        part of the rows that generate. A row whose next token is in flight waits for it (decision 41)."""
        known, many = self.known[rows], self.microbatches
        left, full_steps = known - self.computed[rows], _ceil_div(known, self.chunk[rows])
        chunks = _ceil_div(np.minimum(known - self.settled[rows], _ceil_div(known, full_steps)), many)
        wanted = np.minimum(np.minimum(remaining, left), np.maximum(chunks, self._step_tokens // LEAST_CHUNK))
        generates = (left <= ONE) & ~self.is_loading[rows]
        place = (generates & (wanted > 0)).cumsum()
        return np.asarray(wanted * (~generates | (place <= ceil_div(int(generates.sum()), many))))

    def leave(self, row: int) -> npt.NDArray[np.int32]:
        """Frees the row and returns its outputs; results still in flight for it are stale."""
        outputs = self.outputs[row, : self.output_counts[row]].copy()
        del self.row_of[self.requests.pop(row).name]
        self.epoch[row] += 1
        self._free.append(row)
        return outputs

    def tokens(self, row: int, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens [begin, end) of a request, prompt and outputs."""
        prompt = self.requests[row].prompt
        size = len(prompt)
        if end <= size:
            return prompt[begin:end]
        outputs = self.outputs[row, max(0, begin - size) : end - size]
        return outputs if begin >= size else np.concatenate([prompt[begin:], outputs])

    def batch(self, rows: Ints, starts: Ints, counts: Ints) -> npt.NDArray[np.int32]:
        """The tokens that rows compute in a step, one row after another; those still in flight are SAMPLED."""
        known = self.known[rows] - starts
        tokens = self.latest[rows]
        tokens[known < ONE] = NOT_YET
        chunked = (np.maximum(known, counts) > ONE).nonzero()[0].tolist()
        if not chunked:
            return tokens
        parts, begin = [], 0
        for place in chunked:
            parts += [tokens[begin:place], self._chunk(rows.item(place), starts.item(place), counts.item(place))]
            begin = place + 1
        return np.concatenate([*parts, tokens[begin:]])

    def _chunk(self, row: int, start: int, count: int) -> npt.NDArray[np.int32]:
        end, known = start + count, self.known.item(row)
        if end <= known:
            return self.tokens(row, start, end)
        return np.concatenate([self.tokens(row, start, known), np.full(end - known, NOT_YET)])

    def append(self, rows: Ints, tokens: Ints) -> None:
        """One more output for each row."""
        before = self.output_counts[rows]
        try:
            self.outputs[rows, before] = tokens
        except IndexError:  # cheaper than computing the maximum in every step
            self._widen(int(before.max()) + 1)
            self.outputs[rows, before] = tokens
        self.latest[rows] = tokens
        self.output_counts[rows] = before + ONE
        self.known[rows] = self.known[rows] + ONE

    def extend(self, row: int, tokens: Ints) -> None:
        """Several more outputs of one row."""
        begin, end = int(self.output_counts[row]), int(self.output_counts[row]) + len(tokens)
        self._widen(end)
        self.outputs[row, begin:end] = tokens
        self.output_counts[row] = end
        self.known[row] += len(tokens)
        self.expected[row] += len(tokens)
        if len(tokens):
            self.latest[row] = tokens[-1]

    def _widen(self, columns: int) -> None:
        if columns > self.outputs.shape[1]:
            wider = np.zeros((self.count, max(columns, 2 * self.outputs.shape[1])), dtype=np.int32)
            wider[:, : self.outputs.shape[1]] = self.outputs
            self.outputs = wider


def _ceil_div(amounts: Ints, parts: Ints | int) -> Ints:
    return -(-amounts // parts)
