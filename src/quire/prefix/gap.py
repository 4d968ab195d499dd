"""Why a prompt reuses less than was computed of it before: tokens, by cause.

prompt    ├── hit ──┼───── cached ─────┼──── remembered ────┼── new ──┤
                    ◇ tail evicted     │ evicted, perhaps while it waited
                      ◇ never kept     │
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.prefix.ghosts import Ghosts


class Gap(NamedTuple):
    """Tokens of a prompt that were computed before and could not be reused, by cause."""

    never_kept: int = 0
    """Cached, but no window tail or state was kept where it ends."""
    tail_evicted: int = 0
    """Cached, but the window tail or state where it ends was evicted."""
    evicted: int = 0
    evicted_waiting: int = 0
    """Evicted after the request had arrived."""
    no_room: int = 0
    """Reusable, but no page was free for the copies that this needs."""

    def numbers(self) -> dict[str, int]:
        """For events: the tokens missed, by cause; causes without tokens are left out."""
        return {f"missed_{cause}": tokens for cause, tokens in self._asdict().items() if tokens}


CAUSES = Gap._fields


def gap(ghosts: Ghosts, keys: Sequence[bytes], tokens: tuple[int, int, int], arrival: int, unit_tokens: int) -> Gap:
    """`tokens`: tokens of the prompt that the request reuses, that it could reuse if pages were free, and that are
    cached; `arrival`: requests that arrived before it."""
    used, usable, cached = tokens
    found: dict[str, int] = {}
    for cause, end in (
        ("no_room", usable),
        *_without_boundary(ghosts, keys, usable, cached, arrival, unit_tokens),
        *_gone(ghosts, keys, cached, arrival, unit_tokens),
    ):
        found[cause] = found.get(cause, 0) + max(0, end - used)
        used = max(used, end)
    return Gap(**found)


def _without_boundary(
    ghosts: Ghosts, keys: Sequence[bytes], usable: int, cached: int, arrival: int, unit_tokens: int
) -> Iterator[tuple[str, int]]:
    """For cached tokens in which no hit can end: each cause, and the token up to which it applies."""
    place = ghosts.last_end(keys, usable // unit_tokens, cached // unit_tokens)
    if place is not None:
        ghost = ghosts.at_end(keys[place])
        assert ghost is not None
        yield ("evicted_waiting" if ghost.arrivals > arrival else "tail_evicted"), (place + 1) * unit_tokens
    yield "never_kept", cached


def _gone(
    ghosts: Ghosts, keys: Sequence[bytes], cached: int, arrival: int, unit_tokens: int
) -> Iterator[tuple[str, int]]:
    for _, end, ghost in ghosts.along(keys, cached // unit_tokens):
        yield ("evicted_waiting" if ghost.arrivals > arrival else "evicted"), end * unit_tokens
