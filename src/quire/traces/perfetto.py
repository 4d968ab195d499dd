"""A recording as a trace that Perfetto and Chrome open: steps, a row for each request, and counters over time.

    process "engine"     thread "steps": a slice for each iteration of the loop; thread "cache": evictions, leases, …
                         counters: requests running and waiting, sheets and bytes of the pool by kind
    process "requests"   a thread for each request: its whole time, within it queue, load, prefill, decode, preempted

Times are microseconds since the recording began. It contains numbers and names, and no token of any prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from quire.core.errors import InputError
from quire.core.events import Event, RequestAccepted, RequestEvent, RequestWaits, StepLaunched
from quire.engine.engine import Engine
from quire.explain.sentences import sentence
from quire.recording.replay import Interval, replay
from quire.traces.phases import Moment, Moments, Phase, RequestPhases

ENGINE, REQUESTS = 1, 2
"""Processes."""
STEPS, CACHE = 1, 2
"""Threads of the engine."""
Fields = dict[str, Any]


def write_perfetto(recording: Path, target: Path, to_step: int | None = None) -> Engine:
    """Replays a recording and writes its trace. The file is there when it is complete."""
    part = target.with_name(target.name + ".part")
    try:
        with part.open("w") as file:
            writer = PerfettoWriter(file)
            engine = replay(recording, to_step, listeners=(writer,), watch=writer.watch)
            writer.end()
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return engine


class PerfettoWriter:
    """Writes a trace as an engine replays. Listens to its events, and is called after each call and iteration."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._begun_ns: int | None = None
        """Time zero of the trace."""
        self._now_ns = 0
        self._events: list[Event] = []
        """Of the current call or iteration."""
        self._moments = Moments(lambda: self._now_ns)
        self._rows: dict[str, _Row] = {}
        """Of each request that has not ended."""
        self._threads = 0
        self._counted: dict[str, Mapping[str, int]] = {}
        """By counter, its latest values."""
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        self._name(ENGINE, 0, "process_name", "engine")
        self._name(ENGINE, STEPS, "thread_name", "steps")
        self._name(ENGINE, CACHE, "thread_name", "cache")
        self._name(REQUESTS, 0, "process_name", "requests")

    def __call__(self, event: Event) -> None:
        self._events.append(event)

    def watch(self, engine: Engine, when: Interval) -> None:
        """What is published up to a step's launch happened when its iteration began, the rest when it ended."""
        begin_ns, end_ns = int(when.begin * 1e9), int(when.end * 1e9)
        events, self._events = self._events, []
        launched = [place for place, event in enumerate(events) if isinstance(event, StepLaunched)]
        before = launched[-1] + 1 if launched else 0
        for self._now_ns, some in ((begin_ns, events[:before]), (end_ns, events[before:])):
            for event in some:
                self._note(event)
        self._moments.look(engine.scheduler.rows, engine.scheduler.steps)
        for name, moments in self._moments.take().items():
            for moment in moments:
                self._follow(name, moment)
        if when.is_step:
            self._iteration(begin_ns, end_ns, events[launched[-1]] if launched else None)
        self._count(engine)

    def end(self) -> None:
        """Requests that have not ended are cut where the recording ends."""
        for name, row in list(self._rows.items()):
            row.ended.append(row.phases.end(self._now_ns))
            self._close(name, self._now_ns, {"ending": "the recording ends"})
        self._file.write(
            '{"ph": "M", "pid": 1, "tid": 0, "name": "process_sort_index", "args": {"sort_index": -1}}\n]}\n'
        )

    # ── requests ──────────────────────────────────────────────────────────

    def _note(self, event: Event) -> None:
        self._moments(event)
        if isinstance(event, RequestAccepted):
            self._open(event)
        elif isinstance(event, RequestWaits) and event.request in self._rows:
            args = {"reason": sentence(event.reason)}
            self._instant(REQUESTS, self._rows[event.request].thread, event.reason.code.value, args)
        elif not isinstance(event, RequestEvent | StepLaunched) and event.numbers:
            self._instant(ENGINE, CACHE, event.name, event.numbers)

    def _open(self, event: RequestAccepted) -> None:
        self._threads += 1
        numbers = {"prompt": event.prompt, "max_tokens": event.max_tokens}
        self._rows[event.request] = _Row(self._threads, self._now_ns, numbers, RequestPhases(self._now_ns))
        self._name(REQUESTS, self._threads, "thread_name", event.request)
        self._name(REQUESTS, self._threads, "thread_sort_index", self._threads)

    def _follow(self, name: str, moment: Moment) -> None:
        if name not in self._rows:
            return
        row = self._rows[name]
        if (ended := row.phases.note(moment)) is not None:
            row.ended.append(ended)
        if row.phases.ending is not None:
            self._close(name, moment.at_ns, {"ending": row.phases.ending.value, **moment.event.numbers})

    def _close(self, name: str, at_ns: int, args: Fields) -> None:
        """A slice is written before those within it: of slices that begin together, readers take the first as outer."""
        row = self._rows.pop(name)
        args = {**row.numbers, **args, "preemptions": row.phases.preemptions}
        self._slice(REQUESTS, row.thread, name, (row.begin_ns, at_ns), args)
        for phase in (one for one in row.ended if one.begin_ns < one.end_ns):
            self._slice(REQUESTS, row.thread, phase.name, (phase.begin_ns, phase.end_ns), _args_of(phase))

    # ── the engine ────────────────────────────────────────────────────────

    def _iteration(self, begin_ns: int, end_ns: int, launched: Event | None) -> None:
        name = "collect" if launched is None else f"step {launched.step}"
        self._slice(ENGINE, STEPS, name, (begin_ns, end_ns), {} if launched is None else launched.numbers)

    def _count(self, engine: Engine) -> None:
        scheduler = engine.scheduler
        self._counter("requests", {"running": len(scheduler.rows.row_of), "waiting": len(scheduler.queue)})
        for stage, memory in enumerate(scheduler.memories):
            where = f" of stage {stage}" if len(scheduler.memories) > 1 else ""
            kinds, owner = memory.stage.kinds, memory.pool.owner
            sheets = {kind.name: int((owner == number).sum()) for number, kind in enumerate(kinds)}
            size = memory.stage.sheet_bytes
            self._counter(f"sheets{where}", {**sheets, "free": memory.pool.free_sheets})
            self._counter(f"pool bytes{where}", {name: count * size for name, count in sheets.items()})

    def _counter(self, name: str, values: Mapping[str, int]) -> None:
        """A counter is written where it changes."""
        if self._counted.get(name) != values:
            self._counted[name] = values
            self._write("C", ENGINE, 0, self._now_ns, name=name, args=values)

    # ── events of the file ────────────────────────────────────────────────

    def _name(self, process: int, thread: int, what: str, value: str | int) -> None:
        key = "sort_index" if isinstance(value, int) else "name"
        self._put({"ph": "M", "pid": process, "tid": thread, "name": what, "args": {key: value}})

    def _instant(self, process: int, thread: int, name: str, args: Mapping[str, Any]) -> None:
        self._write("i", process, thread, self._now_ns, name=name, s="t", args=args)

    def _slice(self, process: int, thread: int, name: str, when_ns: tuple[int, int], args: Mapping[str, Any]) -> None:
        begin_ns, end_ns = when_ns
        self._write("X", process, thread, begin_ns, name=name, dur=(end_ns - begin_ns) / 1000, args=args)

    def _write(self, sort: str, process: int, thread: int, at_ns: int, **more: Any) -> None:
        if self._begun_ns is None:
            self._begun_ns = at_ns
        self._put({"ph": sort, "pid": process, "tid": thread, "ts": (at_ns - self._begun_ns) / 1000, **more})

    def _put(self, event: Fields) -> None:
        self._file.write(json.dumps(event) + ",\n")


@dataclass(frozen=True, slots=True)
class _Row:
    """A request that has not ended."""

    thread: int
    begin_ns: int
    numbers: Mapping[str, int]
    phases: RequestPhases
    ended: list[Phase] = field(default_factory=list)


def _args_of(phase: Phase) -> Fields:
    why = {} if phase.reason is None else {"reason": sentence(phase.reason)}
    return {**phase.numbers, **why, **({"failed": True} if phase.is_failed else {})}
