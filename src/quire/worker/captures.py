"""The recurrent states that a step keeps in passing: its captures, as the layers of one kind take them.

    row        ├─ settled ─┼──── new ────┼──── new ────┤
    capture                              ▲ the state after these tokens also goes to a page of the cache

A mixer writes the state while it passes the token. A decode step that is played from a recording has the state in the
row's own page when it ends, and copies that page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.step import Step
from quire.plan.plan import StagePlan
from quire.worker.arena import Arena


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The captures of one kind, by row and then by token: arrays of one length."""

    entries: np.ndarray
    """Which of the step's rows."""
    tokens: np.ndarray
    """How many of the row's new tokens the state has seen."""
    addresses: np.ndarray
    """(capture, group): of the pages to write."""

    def patterns(self, rows: int) -> np.ndarray:
        """(row,): a number that rows share if they are captured after equally many tokens; 0: no capture."""
        numbers: dict[tuple[int, ...], int] = {(): 0}
        each = (tuple(self.tokens[self.entries == entry].tolist()) for entry in range(rows))
        return np.array([numbers.setdefault(tokens, len(numbers)) for tokens in each])

    def of_rows(self, entries: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(tokens, addresses by group and row) of each capture of rows that share a pattern."""
        first = np.searchsorted(self.entries, entries)
        end = np.searchsorted(self.entries, entries[0], side="right")
        return [(int(self.tokens[first[0] + nth]), self.addresses[first + nth].T) for nth in range(end - first[0])]


def captured(step: Step, stage: StagePlan, kind: int) -> Captured | None:
    """The step's captures of one kind; None: there are none."""
    own = sorted((one for one in step.captures if one.kind == kind), key=lambda one: (one.entry, one.tokens))
    if not own:
        return None
    entries, ends = np.array([(one.entry, one.tokens) for one in own], dtype=np.int64).T
    tokens, known = ends - step.starts[entries], step.counts if step.drafts is None else step.counts - step.drafts
    assert stage.kinds[kind].kind.kind == "state", "only recurrent states are captured"
    assert ((tokens > 0) & (tokens <= known[entries])).all(), "a capture lies within the tokens that a row knows"
    assert ((np.diff(entries) > 0) | (np.diff(ends) > 0)).all(), "a kind is captured once after a token"
    return Captured(entries, tokens, stage.addresses(kind, np.stack([one.pages for one in own])))


def copy_captured(step: Step, arena: Arena) -> None:
    """After a step in which rows end where they are captured: from their own pages to the captured ones."""
    for kind in {capture.kind for capture in step.captures}:
        own = captured(step, arena.stage, kind)
        assert own is not None, "this kind is captured"
        assert (own.tokens == step.counts[own.entries]).all(), "rows end where they are captured"
        source = step.tables[0][kind].addresses[step.rows[own.entries], :, 0]
        arena.repeat(kind, source.ravel(), own.addresses.ravel())
