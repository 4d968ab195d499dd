"""Prefixes on their way from a tier: who waits for which load, until when, and what its end means.

    begin ──▶ answered, done  ──▶ the next step copies what was staged into the row's pages; where that takes its time,
                                   another answer tells when they are there
          ──▶ answered, failed ─┐
          ──▶ deadline passed  ─┴▶ the request computes its tokens instead, and does not ask again
          ──▶ answered, has less   it asks again for less, by the same deadline

A load owns staging memory alone. Its request holds the pages all the while, and can be sent away at any moment: an
answer that comes afterwards has a number that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from quire.cache.keys import end_key
from quire.core.reasons import Reason, Why
from quire.core.tier import Load, Tier
from quire.scheduler.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Outcome:
    """A load that was answered. No reason: it is done."""

    load: Load
    row: int
    reason: Reason | None = None
    is_staged: bool = False
    """The next step copies."""
    is_over: bool = True
    """The row goes on, or begins again without."""
    again: tuple[int, float] | None = None
    """The tier may bring fewer tokens: at most so many, by this deadline."""


class Loads:
    def __init__(
        self,
        tier: Tier | None,
        seconds: Callable[[int], float],
        size_of: Callable[[int], int],
        unit: int,
        has_ends: bool = False,
    ) -> None:
        """`seconds`: that a load of so many bytes may take; `size_of`: bytes of so many tokens. `has_ends`: a request
        may also go on from where a turn ended between two units."""
        self._tier = tier
        self._seconds, self._size_of = seconds, size_of
        self._unit = unit
        self._has_ends = has_ends
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
        """What a load of up to so many tokens may take; without a tier there is none."""
        return 0.0 if self._tier is None else self._seconds(self._size_of(tokens))

    def offer(self, waiting: Waiting) -> int:
        """How many tokens of a request the tier can bring, all but the last one at most, if that can be more than were
        found here. Asked once per request."""
        most = len(waiting.request.prompt) + len(waiting.outputs) - 1
        if self._tier is None or most < waiting.hit_tokens + self._unit:
            return 0
        if not (waiting.may_load and waiting.may_reuse):
            return 0
        if waiting.offer is None:
            most = min(most, waiting.again[0]) if waiting.again else most
            found = self._tier.find(waiting.keys[: most // self._unit], partial(self._ends, waiting, most))
            waiting.offer = found.units * self._unit + found.behind
        return waiting.offer

    def _ends(self, waiting: Waiting, most: int, units: int) -> list[bytes]:
        """Keys of the places behind so many units, up to the next one, where a turn may have ended."""
        if not self._has_ends:
            return []
        begin = units * self._unit
        tokens = waiting.tokens(begin, min(most, begin + self._unit - 1))
        before = waiting.keys[units - 1] if units else waiting.root
        return [end_key(before, tokens[:count]) for count in range(1, len(tokens) + 1)]

    def begin(self, row: int, waiting: Waiting, now: float, held_tokens: int) -> Load:
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

    def cancel(self, row: int) -> None:
        """The row is given up; nobody waits for its load any more."""
        number = self._number_of.pop(row, None)
        if number is not None and self._tier is not None:
            del self._open[number]
            self._tier.cancel(number)

    def drop(self, number: int) -> None:
        """What was staged for a row goes to nobody."""
        if self._tier is not None:
            self._tier.cancel(number)

    def next_deadline(self) -> float:
        """Of those that are under way: the first."""
        return min(deadline for _, _, deadline in self._open.values())

    def over(self, now: float) -> Iterator[Outcome]:
        """Loads that were answered, then those that are late."""
        for answer in self._tier.answers() if self._tier is not None else ():
            if answer.number not in self._open:
                continue
            if not answer.is_done:
                yield self._close(answer.number, Reason(Why.TIER, detail=answer.reason), answer.has_less)
            elif answer.is_over:
                yield replace(self._close(answer.number, None), is_staged=answer.is_staged)
            else:
                load, row, _ = self._open[answer.number]
                yield Outcome(load, row, is_staged=True, is_over=False)
        for number in [number for number, (_, _, deadline) in self._open.items() if deadline <= now]:
            if self._tier is not None:
                self._tier.cancel(number)
            seconds = self.seconds_for(self._open[number][0].tokens)
            yield self._close(number, Reason(Why.NO_ANSWER, numbers={"seconds": seconds}))

    def _close(self, number: int, reason: Reason | None, has_less: bool = False) -> Outcome:
        load, row, deadline = self._open.pop(number)
        del self._number_of[row]
        return Outcome(load, row, reason, again=(load.tokens - 1, deadline) if has_less else None)
