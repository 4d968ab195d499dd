"""A step as rank 0 sends it to the other ranks: what they compute, and changes of tables instead of tables.

    header │ rows, starts, counts, samples, tokens │ who enters │ copies, clears, captures, stores, loads │ cells

Rank 0 alone draws tokens, so prompts, sampling and grammars stay there. Of a request that enters, followers learn
whether its prompt is scored, and how long it is: logits are then wanted at more places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quire.core.request import Request, Tokens
from quire.core.sampling import Sampling
from quire.core.step import Ints, Step
from quire.core.tier import Staged
from quire.ranks.ints import IntReader, IntWriter
from quire.ranks.moves import add_moves, moves_of, take_moves
from quire.ranks.tables import NO_CHANGE, Change, Tables, apply

NOT_SCORED = 0
"""As the length of a prompt."""
NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class RankStep:
    """A step, and what rank 0 decided about it."""

    step: Step
    recording: tuple[int, bool] | None = None
    """Rows of the recording that is played, and whether it cuts them; None: the step is not played."""
    loads: tuple[Staged, ...] = ()
    """Where the records of the step's loads are, in their order."""


def encode(message: RankStep, changes: Sequence[Change]) -> bytes:
    step, writer = message.step, IntWriter()
    rows, is_split = message.recording or (0, False)
    moves = moves_of(step, message.loads)
    flags = (step.number, rows, is_split, step.drafts is not None, len(step.entered))
    writer.add(np.array([*flags, *map(len, moves), *(len(change.cells) for change in changes)], dtype=np.int64))
    for values in (step.rows, step.starts, step.counts, step.samples, step.token_ids):
        writer.add(values)
    if step.drafts is not None:
        writer.add(step.drafts)
    if step.entered:
        writer.add(np.array([row for row, _, _ in step.entered]))
        writer.add(np.array([_scored_tokens(request) for _, request, _ in step.entered]))
    add_moves(writer, moves)
    for change in changes:
        if len(change.cells):
            _add_change(writer, change)
    return writer.bytes()


def decode(data: bytes, tables: Tables) -> RankStep:
    """`tables`: the follower's own, which are brought up to date."""
    reader = IntReader(data)
    number, recorded, is_split, has_drafts, entering, *sizes = reader.take().tolist()
    rows, starts, counts, samples, tokens = (reader.take() for _ in range(5))
    drafts = reader.take() if has_drafts else None
    entered = zip(reader.take().tolist(), reader.take().tolist(), strict=True) if entering else ()
    step = Step(number, rows, starts, counts, samples.astype(np.bool_), 0 * rows, tokens.astype(np.int32))
    step = replace(step, entered=tuple(_newcomer(*one) for one in entered), tables=tables, drafts=drafts)
    step, loads = take_moves(reader, sizes[:5], step)
    views = zip(sizes[5:], (view for stage in tables for view in stage), strict=True)
    apply([_take_change(reader, view.addresses.shape[1]) if size else NO_CHANGE for size, view in views], tables)
    assert reader.is_at_end, "a message ends with its last table"
    return RankStep(step, (recorded, bool(is_split)) if recorded else None, loads)


def _scored_tokens(request: Request) -> int:
    return NOT_SCORED if request.sampling.prompt_logprobs is None else len(request.prompt)


def _newcomer(row: int, scored_tokens: int) -> tuple[int, Request, Tokens]:
    """A request as followers know it."""
    sampling = Sampling() if scored_tokens == NOT_SCORED else Sampling(prompt_logprobs=0)
    return row, Request("", np.zeros(max(1, scored_tokens), dtype=np.int32), 1, sampling=sampling), NOTHING


def _add_change(writer: IntWriter, change: Change) -> None:
    """Runs of columns, then addresses group by group: pages are often taken in order."""
    begins = np.flatnonzero(np.diff(change.cells, prepend=change.cells[0] - 2) != 1)
    writer.add(change.cells[begins])
    writer.add(np.diff(begins, append=len(change.cells)))
    writer.add(change.addresses.T.ravel())


def _take_change(reader: IntReader, groups: int) -> Change:
    begins, lengths, addresses = reader.take(), reader.take(), reader.take()
    cells: Ints = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    return Change(cells, addresses.reshape(groups, -1).T)
