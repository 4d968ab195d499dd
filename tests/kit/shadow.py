"""A runner that keeps no numbers but remembers what was written where, and checks every read.

For each token it computes it writes what the numbers there depend on, which is all tokens up to it, into the page slot
that the tables name; then it reads every token that the attention of each kind may see from there. A page freed too
early, given away twice, moved without its table, or shared with someone else's tokens shows up at once.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.tables import Table
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.scheduler.scheduler import Scheduler

Slot = tuple[int, int, int]
"""kind, page, place in the page"""


ZERO = 0
"""What a zeroed state holds."""


def token_for(name: str, position: int) -> int:
    """The token that a request yields at a position: it depends on nothing else."""
    return (crc32(f"{name} {position}".encode()) & 0x7FFF) + 10


class ShadowRunner:
    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.written: list[dict[Slot, int]] = []
        self.contents: dict[str, list[int]] = {}
        self.results: list[StepResult] = []
        self.reads = 0
        self.copies = 0

    def attach(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.written = [{} for _ in scheduler.memories]

    def launch(self, step: Step) -> None:
        assert self.scheduler is not None
        self._copy(step)
        for row, start, count in zip(step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True):
            content = self._content(self.scheduler.rows.requests[row], start + count)
            for memory, written in zip(self.scheduler.memories, self.written, strict=True):
                self._compute(memory, written, row, content, start, count)
        self._capture(step)
        tokens = [
            token_for(self.scheduler.rows.requests[row].name, start + count)
            for row, start, count in zip(
                step.rows[step.samples].tolist(),
                step.starts[step.samples].tolist(),
                step.counts[step.samples].tolist(),
                strict=True,
            )
        ]
        self.results.append(StepResult(step.number, np.array(tokens, dtype=np.int64)))

    def _content(self, request: Request, tokens: int) -> list[int]:
        """For each position, a digest of the scope and of all tokens up to it."""
        content = self.contents.setdefault(request.name, [])
        while len(content) < tokens:
            position = len(content)
            has_prompt = position < len(request.prompt)
            token = int(request.prompt[position]) if has_prompt else token_for(request.name, position)
            content.append(hash((content[-1] if content else crc32(request.scope.encode()), token)))
        return content

    def collect(self) -> StepResult:
        return self.results.pop(0)

    def _copy(self, step: Step) -> None:
        """Copies in order, then zeroes: a state that nothing was written to holds the digest of no tokens."""
        for stage, kind, source, target in step.copies:
            written = self.written[stage]
            place = dict(zip(source.tolist(), target.tolist(), strict=True))
            gone = set(place.values())
            copied = {slot: what for slot, what in written.items() if slot[0] == kind and slot[1] in place}
            for slot in [slot for slot in written if slot[0] == kind and slot[1] in gone]:
                del written[slot]
            written.update({(kind, place[page], where): what for (_, page, where), what in copied.items()})
            self.copies += len(place)
        for _, row in step.loads:
            self._load(row)
        for stage, kind, pages in step.clears:
            self.written[stage].update({(kind, page, 0): ZERO for page in pages.tolist()})

    def _capture(self, step: Step) -> None:
        assert self.scheduler is not None
        for one in step.captures:
            assert step.starts[one.entry] < one.tokens <= step.ends[one.entry]
            content = self.contents[self.scheduler.rows.requests[int(step.rows[one.entry])].name]
            pages = [(one.kind, page, 0) for page in one.pages.tolist()]
            self.written[one.stage].update(dict.fromkeys(pages, content[one.tokens - 1]))

    def _load(self, row: int) -> None:
        """What a tier staged goes into the pages that the row holds."""
        assert self.scheduler is not None
        tokens = int(self.scheduler.rows.settled[row])
        content = self._content(self.scheduler.rows.requests[row], tokens)
        for memory, written in zip(self.scheduler.memories, self.written, strict=True):
            for kind, table in enumerate(memory.tables):
                if table.kind.kind == "state":
                    written.update({(kind, page, 0): content[tokens - 1] for page, _ in _slots(table, row, 0)})
                    continue
                held = {page for run in table.runs(row, 0, tokens) for page in run}
                for position in range(tokens):
                    if position // table.plan.page_tokens in held:
                        written.update({(kind, *slot): content[position] for slot in _slots(table, row, position)})

    def _compute(
        self, memory: StageMemory, written: dict[Slot, int], row: int, content: list[int], start: int, count: int
    ) -> None:
        for kind, table in enumerate(memory.tables):
            if table.kind.kind == "state":
                before = content[start - 1] if start else ZERO
                for page, _ in _slots(table, row, start):
                    assert written.get((kind, page, 0)) == before, (table.plan.name, row, start)
                    written[(kind, page, 0)] = content[start + count - 1]
                continue
            for position in range(start, start + count):
                for page, where in _slots(table, row, position):
                    written[(kind, page, where)] = content[position]
                for seen in _seen(table, position):
                    for page, where in _slots(table, row, seen):
                        assert written.get((kind, page, where)) == content[seen], (table.plan.name, row, position, seen)
                        self.reads += 1


def _slots(table: Table, row: int, position: int) -> list[tuple[int, int]]:
    """Where the tables say that a token lies: one place for each group."""
    if table.kind.kind == "state":
        return [(int(page), 0) for page in table.pages[row, :, 0]]
    if table.kind.kind == "cross":
        return []
    logical, where = divmod(position, table.plan.page_tokens)
    column = int(table.column(np.asarray(logical)))
    return [(int(page), where) for page in table.pages[row, :, column]]


def _seen(table: Table, position: int) -> list[int]:
    """Tokens that the token at `position` attends to, from the definition of the attention."""
    kind = table.kind
    window, chunk = getattr(kind, "window", 0), getattr(kind, "chunk", 0)
    if kind.kind == "chunked":
        return [j for j in range(position + 1) if j // chunk == position // chunk]
    if kind.kind in ("window", "sink"):
        return [j for j in range(position + 1) if j > position - window or j < getattr(kind, "sinks", 0)]
    return list(range(position + 1))
