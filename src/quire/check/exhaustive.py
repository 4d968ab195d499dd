"""The whole list of small systems, explored side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext

from quire.check.explore import Explored, explore
from quire.check.mutations import planted
from quire.check.small import Small


def explore_all(
    systems: Sequence[Small],
    processes: int,
    seconds: float,
    tell: Callable[[Explored], None],
    mutation: str | None = None,
) -> list[Explored]:
    """Explores every system, some at a time, and tells of each when it is done; `seconds` for all of them together."""
    until = time.monotonic() + seconds
    if processes == 1:
        return [_told(_explore_until(small, until, mutation), tell) for small in systems]
    with ProcessPoolExecutor(processes) as pool:
        coming = [pool.submit(_explore_until, small, until, mutation) for small in systems]
        return [_told(one.result(), tell) for one in as_completed(coming)]


def _told(found: Explored, tell: Callable[[Explored], None]) -> Explored:
    tell(found)
    return found


def _explore_until(small: Small, until: float, mutation: str | None) -> Explored:
    """The clock that never goes back is one for all processes of a machine; a planted bug is in its own alone."""
    with planted(mutation) if mutation else nullcontext():
        return explore(small, until - time.monotonic())


def verdict(explored: Sequence[Explored]) -> str:
    states, transitions = sum(one.states for one in explored), sum(one.transitions for one in explored)
    broken = [one for one in explored if one.violation]
    if broken:
        return f"violation: {broken[0].system}: {broken[0].violation}"
    seen = f"{states:,} states and {transitions:,} transitions of {len(explored)} systems"
    unfinished = sum(not one.is_complete for one in explored)
    return (
        f"clean so far: {seen}, {unfinished} not complete" if unfinished else f"clean: all {seen}, none stuck, no leak"
    )
