"""Loads of prefixes from a tier: which row waits for which load, until when, and what happens after it.

    begin ──▶ done         the next step copies what was staged into the row's pages, and the row computes
          ──▶ staged       the next step starts that copy; the row computes when the tier reports it as landed
          ──▶ failed     ─┐
          ──▶ no answer  ─┴▶ the request computes its tokens instead, and does not ask the tier again
          ──▶ incomplete   the request asks the tier for a shorter prefix, with the same deadline

A load owns staging memory and no page. Its request holds the pages, and can be preempted at any moment: an answer that
arrives afterwards has a number that no row waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from quire.core.reasons import Reason, Why
from quire.core.tier import (
    Answer,
    Load,
    Tier,
    TransferDone,
    TransferFailed,
    TransferIncomplete,
    TransferLanded,
    TransferStaged,
)
from quire.prefix.keys import end_key
from quire.scheduler.queue import Ticket


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows for a row that waits for a load: one of the classes below."""

    load: Load
    row: int


class LoadReady(Outcome):
    """The next step copies what was staged, and the row computes from there."""


class LoadCopying(Outcome):
    """The next step starts to copy what was staged. The row waits until it has landed."""


class LoadLanded(Outcome):
    """The copy is done, and the row computes from there."""


@dataclass(frozen=True, slots=True)
class LoadLost(Outcome):
    """The row starts again without the load."""

    reason: Reason
    again: tuple[int, float] | None = None
    """The tier may have a shorter prefix: at most this many tokens, to be loaded by this deadline."""


class Loads:
    """Loads in progress, at most one per row, each with its deadline."""

    def __init__(
        self,
        tier: Tier | None,
        seconds: Callable[[int], float],
        size_of: Callable[[int], int],
        unit: int,
        has_ends: bool = False,
    ) -> None:
        """`seconds`: how long a load may take, by its bytes; `size_of`: bytes, by tokens. `has_ends`: a request may
        also continue from where a turn ended between two units."""
        self._tier, self._unit, self._has_ends = tier, unit, has_ends
        self._seconds, self._size_of = seconds, size_of
        self._open: dict[int, tuple[Load, int, float]] = {}
        """By number: the load, its row, its deadline."""
        self._number_of: dict[int, int] = {}
        """By row."""
        self._numbers = 0

    @property
    def has_tier(self) -> bool:
        return self._tier is not None

    def __len__(self) -> int:
        return len(self._open)

    def seconds_for(self, tokens: int) -> float:
        """How long a load of up to this many tokens may take; 0 without a tier."""
        return 0.0 if self._tier is None else self._seconds(self._size_of(tokens))

    def offer(self, waiting: Ticket) -> int:
        """How many tokens of a request the tier can load, at most all but the last; 0 if that cannot be more than the
        pool has. The tier is asked once per request."""
        most, more = waiting.known - 1, 1 if waiting.hit_tokens < waiting.leased else self._unit
        if self._tier is None or not (waiting.may_load and waiting.may_reuse) or most < waiting.hit_tokens + more:
            return 0
        if waiting.offer is None:
            most = min(most, waiting.again[0]) if waiting.again else most
            found = self._tier.find(waiting.keys[: most // self._unit], partial(self._ends, waiting, most))
            waiting.offer = found.units * self._unit + found.behind
        return waiting.offer

    def _ends(self, waiting: Ticket, most: int, units: int) -> list[bytes]:
        """Keys of the places after `units` units, up to the next unit, where a turn may have ended."""
        if not self._has_ends:
            return []
        begin = units * self._unit
        tokens = waiting.tokens(begin, min(most, begin + self._unit - 1))
        before = waiting.keys[units - 1] if units else waiting.root
        return [end_key(before, tokens[:count]) for count in range(1, len(tokens) + 1)]

    def begin(self, row: int, waiting: Ticket, now: float, held_tokens: int) -> Load:
        assert self._tier is not None
        assert waiting.offer, "nothing was offered"
        units, behind = divmod(waiting.offer, self._unit)
        end = self._ends(waiting, waiting.offer, units)[-1] if behind else b""
        load = Load(self._numbers, waiting.request.name, tuple(waiting.keys[:units]), waiting.offer, end, held_tokens)
        self._numbers += 1
        deadline = waiting.again[1] if waiting.again else now + self.seconds_for(load.tokens)
        self._open[load.number] = (load, row, deadline)
        self._number_of[row] = load.number
        self._tier.begin(load)
        return load

    def leave(self, row: int, staged: Sequence[int]) -> None:
        """A row is given up: its load is cancelled, and what was staged for it is dropped."""
        number = self._number_of.pop(row, None)
        if number is not None:
            del self._open[number]
            self._cancel(number)
        self.drop(staged)

    def drop(self, staged: Iterable[int]) -> None:
        """Cancels loads that were staged and will not be copied."""
        for number in staged:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        if self._tier is not None:
            self._tier.cancel(number)

    def next_deadline(self) -> float:
        """The earliest deadline of the loads in progress."""
        return min(deadline for _, _, deadline in self._open.values())

    def over(self, now: float) -> Iterator[Outcome]:
        """Outcomes of loads that the tier has answered, then of those whose deadline has passed."""
        for answer in self._tier.answers() if self._tier is not None else ():
            if answer.number in self._open:
                yield self._outcome(answer)
        for number in [number for number, (_, _, deadline) in self._open.items() if deadline <= now]:
            self._cancel(number)
            seconds = self.seconds_for(self._open[number][0].tokens)
            yield LoadLost(*self._close(number), Reason(Why.NO_ANSWER, numbers={"seconds": seconds}))

    def _outcome(self, answer: Answer) -> Outcome:
        load, row, deadline = self._open[answer.number]
        match answer:
            case TransferStaged():
                return LoadCopying(load, row)
            case TransferDone():
                return LoadReady(*self._close(load.number))
            case TransferLanded():
                return LoadLanded(*self._close(load.number))
            case TransferFailed(reason=reason):
                return LoadLost(*self._close(load.number), Reason(Why.TIER, detail=reason))
            case TransferIncomplete(reason=reason):
                again = load.tokens - 1, deadline
                return LoadLost(*self._close(load.number), Reason(Why.TIER, detail=reason), again)

    def _close(self, number: int) -> tuple[Load, int]:
        load, row, _ = self._open.pop(number)
        del self._number_of[row]
        return load, row
