"""A step's captures: recurrent states that it also writes to pages of the cache, by kind.

    row        ├─ settled ─┼──── new ────┼──── new ────┤
    capture                              ▲ the state after this token also goes to a page of the cache

A mixer writes the state after it has computed the token. After a recorded decode step the state is in the row's own
page, which is then copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.step import Step
from quire.kinds import Keeps
from quire.plan.plan import StagePlan
from quire.worker.pages.arena import Arena


@dataclass(frozen=True, slots=True, eq=False)
class KindCaptures:
    """The captures of one kind, by row and then by token: arrays of one length."""

    entries: np.ndarray
    """Which of the step's rows."""
    tokens: np.ndarray
    """How many of the row's new tokens precede the capture."""
    addresses: np.ndarray
    """(capture, group): addresses of the pages to write."""

    def patterns(self, rows: int) -> np.ndarray:
        """(row,): equal for rows with captures after the same numbers of tokens; 0: no capture."""
        numbers: dict[tuple[int, ...], int] = {(): 0}
        each = (tuple(self.tokens[self.entries == entry].tolist()) for entry in range(rows))
        return np.array([numbers.setdefault(tokens, len(numbers)) for tokens in each])

    def of_rows(self, entries: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(tokens, addresses by group and row) of each capture of rows that share a pattern."""
        first = np.searchsorted(self.entries, entries)
        end = np.searchsorted(self.entries, entries[0], side="right")
        return [(int(self.tokens[first[0] + nth]), self.addresses[first + nth].T) for nth in range(end - first[0])]


def captures_of(step: Step, stage: StagePlan, kind: int) -> KindCaptures | None:
    """The step's captures of one kind; None: there are none."""
    own = sorted((one for one in step.captures if one.kind == kind), key=lambda one: (one.entry, one.tokens))
    if not own:
        return None
    entries, ends = np.array([(one.entry, one.tokens) for one in own], dtype=np.int64).T
    tokens, known = ends - step.starts[entries], step.counts if step.drafts is None else step.counts - step.drafts
    assert stage.kinds[kind].kind.keeps is Keeps.STATE, "only recurrent states are captured"
    assert ((tokens > 0) & (tokens <= known[entries])).all(), "a capture lies within the tokens that a row knows"
    assert ((np.diff(entries) > 0) | (np.diff(ends) > 0)).all(), "a kind is captured once after a token"
    return KindCaptures(entries, tokens, stage.addresses(kind, np.stack([one.pages for one in own])))


def copy_captures(step: Step, arena: Arena) -> None:
    """Copies rows' own pages to the captured ones, after a step in which rows end where they are captured."""
    for kind in {capture.kind for capture in step.captures}:
        own = captures_of(step, arena.stage, kind)
        assert own is not None, "this kind is captured"
        assert (own.tokens == step.counts[own.entries]).all(), "rows end where they are captured"
        source = step.tables[0][kind].addresses[step.rows[own.entries], :, 0]
        arena.repeat(kind, source.ravel(), own.addresses.ravel())
