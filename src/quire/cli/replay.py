"""Plays a recording of an engine back, to any step, and shows who was running, who waited and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from quire.cli.flags import add_inspect_options
from quire.cli.text import bold, table
from quire.core.errors import InputError
from quire.core.events import RequestEvent, RequestPreempted
from quire.engine import history
from quire.engine.engine import Engine
from quire.explain.events import reason_of
from quire.explain.request import explain
from quire.explain.sentences import describe, sentence, way
from quire.inspect.local import serve
from quire.inspect.recorded import Recorded
from quire.options.spelling import near_to
from quire.recording.replay import names_of, replay
from quire.traces.perfetto import write_perfetto

NAMES_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, help="file written by quire serve --record, plain or gzipped")
    parser.add_argument("--to-step", type=int, metavar="N", help="stop after N steps (default: at the end)")
    parser.add_argument("--explain", metavar="NAME", help="print why this request waits, and its events")
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="also write steps, requests and memory over time, for Perfetto"
    )
    add_inspect_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the inspector's document instead (docs/inspector.md)"
    )


def run(options: argparse.Namespace) -> None:
    if options.inspect:
        place = "" if options.to_step is None else f"#pool?step={options.to_step}"
        serve(Recorded(options.recording), options.port, place=place)
        return
    if options.json:
        print(json.dumps(Recorded(options.recording).at(options.to_step)))
        return
    if options.perfetto is None:
        engine = replay(options.recording, options.to_step)
    else:
        engine = write_perfetto(options.recording, options.perfetto, options.to_step)
        print(f"{options.perfetto} is written: open it in Perfetto (ui.perfetto.dev) or in chrome://tracing\n")
    if options.explain:
        _explain(engine, _engine_name(options.explain, engine.history.names, options.recording))
    else:
        _show(engine)


def _explain(engine: Engine, name: str) -> None:
    explanation, events = explain(engine, name), engine.history.of(name)
    if explanation is None and not events:
        raise InputError(_not_there(name, engine.history.names, engine.scheduler.steps))
    print(describe(explanation) if explanation else f"{name} has ended")
    numbers = [", ".join(f"{key} {value:,}" for key, value in event.numbers.items()) for event in events]
    rows = [(f"{e.step:,}", e.name, text, _why(e)) for e, text in zip(events, numbers, strict=True)]
    print()
    table(("step", "event", "numbers", "reason"), rows, left=(1, 2, 3))


def _engine_name(name: str, names: Sequence[str], recording: Path) -> str:
    """A server names requests by the answer's id without its prefix, and the choice: chatcmpl-5f0c is 5f0c-0. Clients
    may also give the x-request-id that they sent: then the latest call that had it is meant."""
    if name in names:
        return name
    by_client = [one for one in names_of(recording, name) if one in names]
    call = by_client[-1].rpartition("-")[0] if by_client else name.partition("-")[2] or name
    choices = sorted(one for one in names if one.rpartition("-")[0] == call)
    return choices[0] if choices else name


def _why(event: RequestEvent) -> str:
    back = way(event.way_back) if isinstance(event, RequestPreempted) else ""
    return "; ".join(filter(None, (sentence(reason_of(event)) or event.label, back)))


def _not_there(name: str, names: Sequence[str], steps: int) -> str:
    """`names`: the requests in the history. If the history is full, this one may no longer be in it."""
    some = _some(names) + near_to(name, names)
    if len(names) >= history.REQUESTS_REMEMBERED:
        latest = f"the latest {len(names):,} up to step {steps:,} (--to-step goes back to earlier ones)"
        return f"request {name} is not among {latest}: {some}"
    return f"no request named {name} came up to step {steps:,}" + (f", but {len(names):,} did: {some}" if names else "")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


def _show(engine: Engine) -> None:
    scheduler = engine.scheduler
    print(f"{bold(scheduler.plan.model)} after {scheduler.steps:,} steps")
    state = scheduler.rows
    rows = [
        (state.requests[row].name, *(f"{int(column[row]):,}" for column in (state.computed, state.known, state.limit)))
        for row in scheduler.running.order().tolist()
    ]
    rows += [(one.request.name, "–", f"{len(one.request.prompt):,}", sentence(one.reason)) for one in scheduler.queue]
    if rows:
        table(("request", "computed", "known", "limit, or why it waits"), rows, left=(0, 3))
    here = {name for name, *_ in rows}
    if over := [name for name in reversed(engine.history.names) if name not in here]:
        print(f"over: {_some(over)} (--explain NAME says more)")
    for memory in scheduler.memories:
        pool = memory.pool
        used = ", ".join(
            f"{plan.name} {int((pool.owner == kind).sum()):,}" for kind, plan in enumerate(memory.stage.kinds)
        )
        print(f"sheets: {used}, free {pool.free_sheets:,} of {memory.stage.sheets:,}")
