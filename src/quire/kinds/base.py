"""What every kind of layer memory must answer. All answers are pure: they depend on their arguments alone.

A request's tokens lie on a line; a kind says which of them are still needed and how many pages that takes.

        live(settled)              new    ahead
    ····▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒░░░░            demand = the pages that ▓, ▒ or ░ touch
        └page──┴page──┴page──┴page──┴page──┘

Counts are numpy integers or arrays of them: the scheduler asks about all requests at once, with the same function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from quire.core.errors import PlanError
from quire.core.memory import Memory

Counts: TypeAlias = npt.NDArray[np.int64]
Interval: TypeAlias = tuple[int, int]
"""Tokens [begin, end)."""

ATTENTION_PAGES = (16, 32, 64)
"""Tokens per attention page: smaller pages starve kernels, larger ones spoil reuse and short requests."""
LONGEST_FORCED_PAGE = 1 << 20


def counts(value: int | Counts) -> Counts:
    return np.asarray(value, dtype=np.int64)


class Keeps(Enum):
    """What a kind keeps of a request. It decides how pages are given back, loaded from a tier and reused."""

    ALL = "all"
    """Every token: pages are only added."""
    TAIL = "tail"
    """The newest tokens, and perhaps the first ones: pages are given back as the request goes on."""
    STATE = "state"
    """One state that stands for all tokens so far: a hit needs a copy of it, taken exactly there."""


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """One way of remembering. Instances with equal numbers are equal and may share pages.

    The fields of a kind are its numbers: `of` reads them from the attributes of `Memory` with the same names.
    """

    kind: ClassVar[str]
    keeps: ClassVar[Keeps]
    holds_tokens: ClassVar[bool] = True
    """Whether its pages hold the request's own tokens, in order: a state and an encoder's output do not."""
    is_shareable: ClassVar[bool] = True
    """Whether equal tokens make equal bytes, so that requests may share them."""
    holds_latents: ClassVar[bool] = False
    """Whether its parts are latents: a layer stores them before it computes keys and values from them."""
    selects: ClassVar[bool] = False
    """Whether a query reads only some of the tokens that it sees, selected when it runs."""

    @classmethod
    def of(cls, memory: Memory) -> Self:
        """The kind with the numbers of a layer's memory."""
        numbers: dict[str, Any] = {one.name: memory.number(one.name) for one in fields(cls)}
        return cls(**numbers)

    @property
    def numbers(self) -> dict[str, Any]:
        """Its own, by name: `window`, `chunk`, …"""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def grows(self) -> bool:
        """Whether a token adds bytes for ever. If not, the slope `bytes_per_token` is 0."""
        return self.keeps is Keeps.ALL

    @property
    def can_rewind(self) -> bool:
        """Whether tokens that were computed can be taken back: rejected draft tokens are."""
        return True

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique among the kinds of one model; the key used in reports and JSON."""

    @abstractmethod
    def live(self, settled: int) -> tuple[Interval, ...]:
        """The tokens that later tokens can still read when `settled` tokens are computed and off the device's hands."""

    @abstractmethod
    def first_live(self, settled: Counts) -> Counts:
        """Where the unbroken run of live tokens up to the newest begins; `settled` itself if none is live."""

    def first_page(self, settled: Counts, page_tokens: int) -> Counts:
        """The page in which that run begins; pages before it may go back."""
        return self.first_live(settled) // page_tokens

    def end_page(self, end: Counts, ahead: Counts, page_tokens: int) -> Counts:
        """One past the last page of a run whose last token ends at `end`, the last `ahead` of them lookahead."""
        del ahead
        return (end + (page_tokens - 1)) // page_tokens

    @property
    def mask_bounds(self) -> Mapping[str, int] | None:
        """Its mask as kernels bound one: `window`, `chunk` and `sinks` that are set; None: by none of these."""
        return {} if self.grows and not self.selects else None

    def sees(self, query: Counts, token: Counts) -> npt.NDArray[np.bool_]:
        """Whether the token at position `query` attends to the one at `token`: the attention mask."""
        return (token <= query) & (token >= self.first_live(query))

    def sink_pages(self, page_tokens: int) -> int:
        """Pages from the request's start that are never given back: those of sinks."""
        del page_tokens
        return 0

    def kept_pages(self, settled: Counts, page_tokens: int) -> Counts:
        """Pages from the request's start that stay although the run begins later: sinks."""
        del page_tokens
        return 0 * settled

    def pages(self, settled: Counts, new: Counts, ahead: Counts, page_tokens: int) -> Counts:
        """Demand: pages that touch live(settled) ∪ [settled, settled + new + ahead)."""
        end = settled + new + ahead
        if self.grows:
            return self.end_page(end, ahead, page_tokens)
        first = self.first_live(settled)
        run = (self.end_page(end, ahead, page_tokens) - first // page_tokens) * (first < end)
        return run + self.kept_pages(settled, page_tokens)

    @abstractmethod
    def units(self, length: Counts) -> Counts:
        """What is stored in steady decode at `length`: tokens, folded states, or 1 for a recurrent state."""

    @abstractmethod
    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        """What the cache must hold so that a request may go on at `boundary` as if it had computed the prefix: the run
        up to it last, before it at most one from the first token on."""

    def period_tokens(self, page_tokens: int) -> int:
        """Later is never cheaper: demand at c + period is at least demand at c, for the same new and ahead."""
        return page_tokens

    @property
    def fixed_units(self) -> int:
        """The units that a long request holds whatever its length (A of its footprint A + B·tokens)."""
        return 0

    @property
    def tokens_per_unit(self) -> int:
        return 1

    def units_per_page(self, page_tokens: int) -> int:
        return page_tokens // self.tokens_per_unit

    def page_choices(self, narrow: bool) -> tuple[int, ...]:
        """Page sizes worth considering. `narrow`: every part is a latent vector, so tiny pages are harmless."""
        del narrow
        return ATTENTION_PAGES

    def check_page(self, page_tokens: int) -> None:
        """Raises PlanError where no page of that many tokens can exist."""
        if not 1 <= page_tokens <= LONGEST_FORCED_PAGE:
            raise PlanError(f"a page of {page_tokens:,} tokens is out of range: choose 1 to {LONGEST_FORCED_PAGE:,}")
        if page_tokens % self.tokens_per_unit:
            raise PlanError(
                f"{self.name} folds {self.tokens_per_unit} tokens into one state, so a page of {page_tokens} tokens "
                f"would cut one: choose a multiple of {self.tokens_per_unit}"
            )

    def resident(self, lengths: Counts, page_tokens: int) -> Counts:
        """Pages in steady decode: length − 1 tokens settled, one being computed."""
        return self.pages(lengths - 1, counts(1), counts(0), page_tokens)

    def minimum(self, length: int, ahead: int, page_tokens: int) -> int:
        """Pages without which this kind could not take a lone request to `length`, one token at a time."""
        return self.peak(length, 1, ahead, page_tokens)

    def peak(self, length: int, chunk: int, ahead: int, page_tokens: int) -> int:
        """The most pages a lone request of `length` ever demands when up to `chunk` tokens are in flight."""
        moments = decisive_moments(length, chunk, ahead, self.period_tokens(page_tokens))
        return int(self.pages(*moments, page_tokens).max(initial=0))


def decisive_moments(length: int, chunk: int, ahead: int, period_tokens: int) -> tuple[Counts, Counts, Counts]:
    """The moments (settled, new, ahead) of a lone request of `length` that decide a maximum over all its moments.

    By `period_tokens`, moving c up by whole periods never lowers demand as long as c + chunk + ahead stays within the
    length, so every c below this range has a counterpart inside it that demands at least as much. New tokens and
    lookahead end where the request does; where both do not fit, fewer new tokens beside the whole lookahead reach as
    far and leave states more to rewind, so that is the moment that counts.
    """
    settled = np.arange(max(0, length - period_tokens - chunk - ahead), length, dtype=np.int64)
    new = counts(np.minimum(chunk, np.maximum(1, length - settled - ahead)))
    return settled, new, counts(np.minimum(ahead, length - settled - new))


class AllTokens(Kind):
    """The rules of kinds that keep every token."""

    __slots__ = ()
    keeps: ClassVar[Keeps] = Keeps.ALL

    def live(self, settled: int) -> tuple[Interval, ...]:
        return ((0, settled),)

    def first_live(self, settled: Counts) -> Counts:
        return 0 * settled

    def units(self, length: Counts) -> Counts:
        return length

    def hit_needs(self, boundary: int) -> tuple[Interval, ...]:
        return ((0, boundary),)

    def period_tokens(self, page_tokens: int) -> int:
        del page_tokens
        return 1
