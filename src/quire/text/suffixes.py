"""Draft tokens by the longest suffix that occurred before, in the same request or an earlier one of its scope.

    log      a ring of blocks: │ … we run the │ the tests and │ … │ we run the          every request writes its own
    table    hash of the last 16, 6 or 3 tokens ──▶ the place in the log where its latest occurrence goes on

All memory is allocated at the start. The oldest block gives way to a new one, and an entry of the table to a later one
in the same slot, so a lookup may miss. What it finds is compared with the row's tokens, and with its scope.

Rows are extended and looked up as arrays, so those that never repeat themselves cost little. A row drafts more tokens
after drafts that were accepted and fewer after others, and rests for a while after drafts that were all rejected.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quire.core.errors import InputError
from quire.core.request import Tokens

LEVELS = (16, 6, 3)
"""How many tokens are looked up, the most first."""
HISTORY = 32
"""A block begins with the last tokens of the one that it continues, no fewer than the greatest level."""
BLOCK_TOKENS = 1024
OWN_TOKENS = BLOCK_TOKENS - HISTORY
MOST_TOKENS = 16_384
"""Of a request's first tokens, the last ones are kept."""
MOST_SCOPES = 4096
FEWEST_DRAFTS, FIRST_DRAFTS = 2, 8
MOST_REST = 64
"""Tokens for which a row rests at most."""
ENTRY_BYTES, BLOCK_BYTES = 8, 4 * BLOCK_TOKENS + 4 * 8
EACH_BYTES = BLOCK_BYTES + ENTRY_BYTES * len(LEVELS) * OWN_TOKENS
"""Of a block, with the table's entries for its tokens."""
MARK_BITS, MARK = np.int64(20), np.int64((1 << 20) - 1)
"""Of an entry, the lowest bits are bits of the hash."""
MARK_SHIFT = np.uint64(16)
FACTOR = 0x9E3779B97F4A7C15
SALT, MOST = 0xBF58476D1CE4E5B9, (1 << 64) - 1
NO_LIMIT = 1 << 62
POWERS = np.array([[pow(FACTOR, size, 1 << 64)] for size in LEVELS], dtype=np.uint64)
SIZES = np.array(LEVELS)[:, None]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Log:
    """A ring of blocks. A place counts all slots that ever were; the latest of them are there."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.head = blocks, (blocks + 1) * BLOCK_TOKENS
        self.tokens = np.zeros((blocks, BLOCK_TOKENS), dtype=np.int32)
        self.flat = self.tokens.reshape(-1)
        self.scopes, self.begins, self.ends, self.next = np.zeros((4, blocks), dtype=np.int64)
        """By block: its scope, the places of its first token and after its last one, and the block that goes on."""

    @property
    def size_bytes(self) -> int:
        return self.tokens.nbytes + 4 * self.scopes.nbytes

    @property
    def oldest(self) -> int:
        return self.head - self.flat.size

    def number(self, place: int) -> int:
        return place // BLOCK_TOKENS % self.blocks

    def add(self, tokens: Tokens, scope: int) -> int:
        """Writes a request's first tokens into new blocks. Returns where those begin."""
        count = -(-len(tokens) // OWN_TOKENS)
        padded = np.zeros(count * OWN_TOKENS + HISTORY, dtype=np.int32)
        padded[HISTORY : HISTORY + len(tokens)] = tokens
        first, self.head = self.head, self.head + count * BLOCK_TOKENS
        starts = first + BLOCK_TOKENS * np.arange(count)
        numbers = starts // BLOCK_TOKENS % self.blocks
        self.tokens[numbers] = np.lib.stride_tricks.sliding_window_view(padded, BLOCK_TOKENS)[::OWN_TOKENS]
        self.scopes[numbers], self.begins[numbers] = scope, starts
        self.begins[numbers[0]] += HISTORY
        self.ends[numbers] = starts + BLOCK_TOKENS
        self.ends[numbers[-1]] = self.place_of(first, len(tokens) - 1) + 1
        self.next[numbers] = starts + BLOCK_TOKENS
        self.next[numbers[-1]] = 0
        return first

    def go_on(self, stops: Ints, history: Tokens, lengths: Ints, scopes: Ints) -> Ints:
        """A new block after each of those that end at `stops`. `history`: (block, token), the last `lengths` count."""
        first = self.head + BLOCK_TOKENS * np.arange(len(stops))
        self.head += BLOCK_TOKENS * len(stops)
        numbers = first // BLOCK_TOKENS % self.blocks
        self.tokens[numbers, :HISTORY] = history
        self.scopes[numbers], self.next[numbers] = scopes, 0
        self.begins[numbers], self.ends[numbers] = first + HISTORY - lengths, first + HISTORY
        is_there = stops > self.oldest
        self.next[(stops[is_there] - 1) // BLOCK_TOKENS % self.blocks] = first[is_there]
        return first

    @staticmethod
    def place_of(first: int, index: int) -> int:
        """Of a token that was written into new blocks."""
        return first + index // OWN_TOKENS * BLOCK_TOKENS + HISTORY + index % OWN_TOKENS

    def before(self, place: int, count: int) -> Tokens:
        first = max(int(self.begins[self.number(place - 1)]), place - count) % self.flat.size
        last = (place - 1) % self.flat.size
        return self.flat[first : last + 1]

    def after(self, place: int, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count and place >= self.oldest:
            number = self.number(place)
            end = min(int(self.ends[number]), place + count - len(found))
            if end > place:
                found += self.flat[place % self.flat.size : (end - 1) % self.flat.size + 1].tolist()
            if len(found) == count or not self.next[number]:
                break
            place = int(self.next[number]) + HISTORY
        return found


class SuffixDrafter:
    def __init__(self, rows: int, memory_bytes: int, most_step_tokens: int | None = None) -> None:
        """`most_step_tokens`: of a step, drafts included, beyond which more tokens take more time."""
        blocks, fewest = memory_bytes // EACH_BYTES, 2 * rows + 2
        if blocks < fewest:
            raise InputError(
                f"{memory_bytes:,} bytes of earlier tokens are too few for {rows:,} requests: give at least "
                f"{fewest * EACH_BYTES:,}"
            )
        slots = 1 << (blocks * OWN_TOKENS).bit_length() - 1
        self.log, self._most = Log(int(blocks)), most_step_tokens
        self._table = np.zeros(len(LEVELS) * slots, dtype=np.int64)
        self._shift = np.uint64(65 - slots.bit_length())
        self._first_slots = slots * np.arange(len(LEVELS))[:, None]
        self._scopes: dict[str, int] = {}
        self._last_scope = 0
        self._scope, self._count, self._end, self._stop = np.zeros((4, rows), dtype=np.int64)
        """By row: its scope, its tokens, the place of the next one, and where its block ends."""
        self._salts = np.zeros(rows, dtype=np.uint64)
        self._latest = np.zeros((HISTORY, rows), dtype=np.uint64)
        """Its latest tokens plus 1; token i is in place i % HISTORY."""
        self._hashes = np.zeros((len(LEVELS), rows), dtype=np.uint64)
        """Of its last tokens."""
        self._drafts, self._rejected, self._rests_until = np.zeros((3, rows), dtype=np.int64)
        self._proposed: dict[int, tuple[int, list[int]]] = {}
        """By row: how many tokens it had, and what was proposed."""

    @property
    def size_bytes(self) -> int:
        """Of what grows with the budget."""
        return self.log.size_bytes + self._table.nbytes

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        most = min(MOST_TOKENS, self.log.blocks // 2 * OWN_TOKENS)
        tokens = tokens[-most:]
        self._proposed.pop(row, None)
        self._scope[row] = number = self._number_of(scope)
        self._salts[row] = number * SALT & MOST
        first = self.log.add(tokens, number)
        places = Log.place_of(0, 0) + first + _offsets(len(tokens))
        hashes = _all_hashes(tokens)
        slots, marks = self._keys(hashes[:, :-1], self._salts[[row]])
        self._table[slots] = places[1:] << MARK_BITS | marks
        self._hashes[:, row] = hashes[:, -1]
        self._count[row], self._end[row] = len(tokens), places[-1] + 1
        self._stop[row] = -(-self._end[row] // BLOCK_TOKENS) * BLOCK_TOKENS
        last = np.arange(max(0, len(tokens) - HISTORY), len(tokens))
        self._latest[:, row] = 0
        self._latest[last % HISTORY, row] = tokens[last].astype(np.int64) + 1
        self._drafts[row], self._rejected[row], self._rests_until[row] = FIRST_DRAFTS, 0, 0

    def extend(self, rows: Ints, tokens: Tokens) -> None:
        """The next token of each of these rows."""
        end, log = self._end[rows], self.log
        while (is_full := (end == self._stop[rows]) | (self._stop[rows] <= log.oldest)).any():
            self._continue(rows[is_full])
            end = self._end[rows]
        hashes = self._hashes.take(rows, 1)
        slots, marks = self._keys(hashes, self._salts[rows])
        self._table[slots] = end << MARK_BITS | marks
        log.flat[end % log.flat.size] = tokens
        log.ends[end // BLOCK_TOKENS % log.blocks] = end + 1
        count, latest = self._count[rows], tokens.astype(np.uint64) + np.uint64(1)
        width = self._latest.shape[1]
        gone = self._latest.take(((count - SIZES) & (HISTORY - 1)) * width + rows)
        self._hashes[:, rows] = hashes * np.uint64(FACTOR) + latest - gone * POWERS
        self._latest.put((count & (HISTORY - 1)) * width + rows, latest)
        self._count[rows], self._end[rows] = count + 1, end + 1

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        """By place in `rows`: at most as many tokens as `counts` says."""
        room = NO_LIMIT if self._most is None else self._most - step_tokens
        if room <= 0:
            return {}
        slots, marks = self._keys(self._hashes[-1:].take(rows, 1), self._salts[rows])
        is_found = ((self._table[slots[0]] ^ marks[0]) & MARK) == 0
        proposed = {}
        for place in is_found.nonzero()[0].tolist():
            row = int(rows[place])
            self._learn(row)
            most = min(room, int(counts[place]), int(self._drafts[row]))
            if self._rests_until[row] <= self._count[row] and (found := self.look_up(row, most)):
                self._proposed[row] = int(self._count[row]), found
                proposed[place] = np.array(found, dtype=np.int32)
                room -= len(found)
                if room <= 0:
                    break
        return proposed

    def look_up(self, row: int, count: int) -> list[int]:
        """What follows the latest occurrence of the row's last tokens: of as many as a level has and occurred."""
        own = self._recent(row, LEVELS[0])
        slots, marks = self._keys(self._hashes[:, [row]], self._salts[[row]])
        entries = self._table[slots]
        found_marks = zip(LEVELS, entries[:, 0].tolist(), (entries & MARK == marks)[:, 0].tolist(), strict=True)
        for size, entry, is_marked in found_marks:
            place = entry >> int(MARK_BITS)
            if size <= len(own) and is_marked and self._matches(row, place, own[-size:]):
                found = self.log.after(place, count)
                if 0 < len(found) < count and place + len(found) == self._end[row]:  # a loop, which goes on
                    found = (found * -(-count // len(found)))[:count]
                return found
        return []

    def _matches(self, row: int, place: int, own: Tokens) -> bool:
        log = self.log
        if place < log.oldest or log.scopes[log.number(place - 1)] != self._scope[row]:
            return False
        return bool(np.array_equal(log.before(place, len(own)), own))

    def _recent(self, row: int, count: int) -> Tokens:
        """The row's last tokens."""
        known = int(self._count[row])
        places = np.arange(max(0, known - min(count, HISTORY)), known) % HISTORY
        found: Tokens = (self._latest[places, row] - np.uint64(1)).astype(np.int32)
        return found

    def _learn(self, row: int) -> None:
        """From the latest proposal: as many drafts as were accepted are worth while, and some more."""
        begin, proposed = self._proposed.pop(row, (0, []))
        since = int(self._count[row]) - begin
        came = self._recent(row, since)[: len(proposed)].tolist() if since <= HISTORY else []
        if not came:
            return
        accepted = next((place for place, token in enumerate(came) if token != proposed[place]), len(came))
        if accepted:
            self._rejected[row] = 0
            grown = 2 * accepted if accepted == len(came) else accepted + 1
            self._drafts[row] = max(FEWEST_DRAFTS, grown)
        else:
            self._rejected[row] = min(self._rejected[row] + 1, 6)
            self._drafts[row] = max(FEWEST_DRAFTS, self._drafts[row] // 2)
            rest = min(MOST_REST, (1 << int(self._rejected[row])) - 2)
            self._rests_until[row] = self._count[row] + rest

    def _continue(self, rows: Ints) -> None:
        """A new block for each of these rows."""
        stops, count = self._stop[rows], self._count[rows]
        order = (count[:, None] + np.arange(HISTORY)) & (HISTORY - 1)
        history = (self._latest[order, rows[:, None]] - np.uint64(1)).astype(np.int32)
        first = self.log.go_on(stops, history, np.minimum(count, HISTORY), self._scope[rows])
        self._end[rows], self._stop[rows] = first + HISTORY, first + BLOCK_TOKENS

    def _number_of(self, scope: str) -> int:
        """Never that of another scope. Where there are too many, all begin anew."""
        if scope not in self._scopes:
            if len(self._scopes) == MOST_SCOPES:
                self._scopes.clear()
            self._last_scope += 1
            self._scopes[scope] = self._last_scope
        return self._scopes[scope]

    def _keys(self, hashes: Hashes, salts: Hashes) -> tuple[Ints, Ints]:
        """(slot, mark) by level; of one level: of the last."""
        mixed = (hashes ^ salts) * np.uint64(FACTOR)
        slots = (mixed >> self._shift).view(np.int64) + self._first_slots[-len(hashes) :]
        return slots, (mixed >> MARK_SHIFT).view(np.int64) & MARK


def _offsets(count: int) -> Ints:
    index = np.arange(count)
    return index // OWN_TOKENS * BLOCK_TOKENS + index % OWN_TOKENS


def _all_hashes(tokens: Tokens) -> Hashes:
    """(level, token): of the last tokens up to each."""
    known = len(tokens)
    hashes = np.zeros((len(LEVELS), known), dtype=np.uint64)
    for age in range(min(known, LEVELS[0])):
        aged = (tokens[: known - age].astype(np.uint64) + np.uint64(1)) * np.uint64(pow(FACTOR, age, 1 << 64))
        hashes[: np.count_nonzero(age < SIZES), age:] += aged  # the levels that are longer come first
    return hashes
