"""Learns from traffic how soon prefixes are used again, and so what keeping one is worth at each age.

    age      the tokens of traffic that passed since the last use: of all prompts and outputs, found in the cache or not
    hazard   of the prefixes that reached an age: the fraction that is used again before the next age
    value    the most uses per token of traffic over all times to keep it: probability of a use ÷ expected time

In cyclic traffic hazards rise with age, so what was used last is evicted first. In other traffic they fall, and what
was used longest ago is evicted first. Prefixes of one class share their hazards.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Origin(IntEnum):
    """Why a prefix is kept."""

    TURN = 0
    """A request ended here; if every kind grows: any sequence of tokens."""
    PROMPT = 1
    """The last whole unit of a prompt ends here."""
    JUNCTION = 2
    """Prompts diverge here."""
    SPARE = 3
    """Between boundaries, in case another prompt diverges from this one there."""
    PASSED = 4
    """A request ended here, and another one continued from it and ended further on."""
    BEYOND = 5
    """Beyond what the next turn of a conversation has too."""


USES = LINES = 4
"""How many numbers of uses, and lengths of a sequence of hits, are distinguished: 0, 1, 2, and 3 or more."""
CLASSES = len(Origin) * LINES * USES
FIRST_HAZARD = {Origin.TURN: 0.1, Origin.PROMPT: 0.05, Origin.JUNCTION: 0.15, Origin.SPARE: 1e-5, Origin.PASSED: 0.001}
FIRST_HAZARD[Origin.BEYOND] = 1e-7
"""Hazards before anything is learned: equal at all ages. Ages are on a log scale, so older prefixes are worth less."""
PRIOR_WEIGHT = 3.0
"""The hazard of a wider class counts as much as this many observed prefixes."""
BINS, BIN_TOKENS = 48, 64.0
"""Ages are distinguished by half powers of 2, from `BIN_TOKENS` on."""
KNOWN_SHARE = 0.02
"""At ages that less than this part of a class was observed to reach, hazards are not assumed to be higher than at the
last age before."""
MEMORY = 4096
"""About how many uses are remembered; older ones fade."""
LEARN_FIRST, LEARN_LATER = 4, 256
"""Uses after which hazards are recomputed: first, and at most; the number doubles each time."""

_EDGES = np.concatenate([[0.0], BIN_TOKENS * 2.0 ** (np.arange(1, BINS + 1) / 2)])
_WIDTHS = np.diff(_EDGES)


def class_of(origin: Ints, line: Ints, uses: Ints) -> Ints:
    classes: Ints = (origin * LINES + np.minimum(line, LINES - 1)) * USES + np.minimum(uses, USES - 1)
    return classes


def class_of_one(origin: int, line: int, uses: int) -> int:
    """The same for one prefix, without arrays."""
    return (origin * LINES + min(line, LINES - 1)) * USES + min(uses, USES - 1)


class Forecast(Protocol):
    """Estimates what keeping prefixes is worth."""

    learns: bool
    """Whether values change with time and with the uses that are noted."""

    def values(self, classes: Ints, used: Floats, now: float, worths: Floats) -> Floats:
        """Values of prefixes last used at `used`; the lowest is evicted first. `worths`: tokens saved per byte."""
        ...

    def value(self, kind: int, used: float, now: float, worth: float) -> float:
        """The value of one prefix of class `kind`."""
        ...

    def note_use(self, kind: int, age: float) -> None:
        """A prefix of this class was used again at this age, or would have been if it were still cached."""
        ...

    def note_end(self, kind: int, age: float) -> None:
        """A prefix was not used again up to this age, and is no longer observed."""
        ...


class Recency:
    """Evicts the least recently used prefix first, whatever it is worth."""

    learns = False

    def values(self, classes: Ints, used: Floats, now: float, worths: Floats) -> Floats:
        del classes, now, worths
        return used

    def value(self, kind: int, used: float, now: float, worth: float) -> float:
        del kind, now, worth
        return used

    def note_use(self, kind: int, age: float) -> None: ...

    def note_end(self, kind: int, age: float) -> None: ...


class ReuseTimes:
    """The forecast that learns from traffic how soon prefixes are used again."""

    learns = True

    def __init__(self) -> None:
        self._used = np.zeros((CLASSES, BINS))
        """By class and age: prefixes that were used again."""
        self._reached = np.zeros((CLASSES, BINS))
        """By class and age: prefixes that reached this age, of those that are no longer observed."""
        first = np.array([FIRST_HAZARD[origin] for origin in Origin])
        self._first = np.broadcast_to(first[:, None, None, None], (len(Origin), 1, 1, BINS))
        self._values = np.zeros((CLASSES, BINS + 1))
        self._rows: list[list[float]] = []
        """The same as plain numbers, which are faster one by one."""
        self._uses = 0
        self._enough = LEARN_FIRST // 2
        self.learn(np.zeros(0, dtype=np.int64), np.zeros(0))

    @property
    def is_stale(self) -> bool:
        """Whether there were enough uses to recompute hazards."""
        return self._uses >= self._enough

    def values(self, classes: Ints, used: Floats, now: float, worths: Floats) -> Floats:
        places = np.clip(2 * np.log2(np.maximum(now - used, BIN_TOKENS) / BIN_TOKENS), 0, BINS - 1)
        low = places.astype(np.int64)
        share, own = places - low, self._values
        values: Floats = (own[classes, low] * (1 - share) + own[classes, low + 1] * share) * worths
        return values

    def value(self, kind: int, used: float, now: float, worth: float) -> float:
        place = min(BINS - 1.0, 2 * math.log2(max(now - used, BIN_TOKENS) / BIN_TOKENS))
        low, own = int(place), self._rows[kind]
        return (own[low] * (1 - place + low) + own[low + 1] * (place - low)) * worth

    def note_use(self, kind: int, age: float) -> None:
        place = _bin(age)
        self._used[kind, place] += 1
        self._reached[kind, : place + 1] += 1
        self._uses += 1

    def note_end(self, kind: int, age: float) -> None:
        place = _bin(age)
        self._reached[kind, :place] += 1
        self._reached[kind, place] += 0.5

    def learn(self, classes: Ints, ages: Floats) -> None:
        """Recomputes hazards and values. `classes`, `ages`: of observed prefixes that were not used again yet."""
        used, reached = self._used, self._reached + _reached(classes, ages)
        shape = (len(Origin), LINES, USES, BINS)
        hazards = _hazards(used.reshape(shape), reached.reshape(shape), self._first)
        self._values[:, :BINS] = _best_rates(hazards.reshape(CLASSES, BINS))
        self._values[:, BINS] = self._values[:, BINS - 1]
        self._rows = self._values.tolist()
        fade = max(0.5, 1 - self._uses / MEMORY)
        self._used *= fade
        self._reached *= fade
        self._uses, self._enough = 0, min(2 * self._enough, LEARN_LATER)


def _bin(age: float) -> int:
    return min(BINS - 1, int(_EDGES.searchsorted(age, side="right")) - 1) if age > 0 else 0


def _reached(classes: Ints, ages: Floats) -> Floats:
    """How many of these prefixes have reached each age; one whose age is in the bin counts half there."""
    bins = np.minimum(_EDGES.searchsorted(ages, side="right") - 1, BINS - 1)
    ended = np.bincount(classes * BINS + bins, minlength=CLASSES * BINS).reshape(CLASSES, BINS)
    reached: Floats = ended[:, ::-1].cumsum(axis=1)[:, ::-1] - ended / 2
    return reached


def _hazards(used: Floats, reached: Floats, first: Floats) -> Floats:
    """(origin, line, uses, age): hazards of each class from its own prefixes, with those of wider classes as prior."""
    hazards = first
    for axes in ((1, 2), (1,), ()):
        own, all_own = (one.sum(axis=axes, keepdims=True) if axes else one for one in (used, reached))
        hazards = (own + PRIOR_WEIGHT * hazards) / (np.maximum(own, all_own) + PRIOR_WEIGHT)
        hazards = _within_sight(hazards, all_own + PRIOR_WEIGHT)
    return hazards


def _within_sight(hazards: Floats, reached: Floats) -> Floats:
    known = reached >= KNOWN_SHARE * reached[..., :1]
    last = BINS - 1 - known[..., ::-1].argmax(axis=-1, keepdims=True)
    limit = np.take_along_axis(hazards, last, axis=-1)
    return np.where(np.arange(BINS) > last, np.minimum(hazards, limit), hazards)


def _best_rates(hazards: Floats) -> Floats:
    """For each age: the most uses per token of traffic over all times to keep a prefix from then on."""
    rates = np.zeros_like(hazards)
    stays = 1 - hazards
    for first in range(BINS):
        there = np.ones((len(hazards), BINS - first))
        np.cumprod(stays[:, first:-1], axis=1, out=there[:, 1:])
        uses = (there * hazards[:, first:]).cumsum(axis=1)
        times = (there * (1 - hazards[:, first:] / 2) * _WIDTHS[first:]).cumsum(axis=1)
        rates[:, first] = (uses / times).max(axis=1)
    return rates
