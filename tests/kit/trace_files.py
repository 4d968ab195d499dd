"""Reads files in the trace event format as its document describes it, and refuses what it does not allow."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    name: str
    begin: int
    """Nanoseconds."""
    end: int
    args: dict[str, Any]
    inner: list[Slice] = field(default_factory=list)


@dataclass
class Trace:
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    slices: dict[tuple[str, str], list[Slice]] = field(default_factory=lambda: defaultdict(list))
    """The outer ones, by names of process and thread."""
    instants: list[tuple[str, str, str, float, dict[str, Any]]] = field(default_factory=list)
    counters: dict[str, list[tuple[float, dict[str, float]]]] = field(default_factory=lambda: defaultdict(list))

    def requests(self) -> dict[str, Slice]:
        """By name; each has a thread and one outer slice."""
        found = {}
        for (process, thread), outer in self.slices.items():
            if process == "requests":
                (found[thread],) = outer
        return found


def read_trace(path: Path) -> Trace:
    trace, open_slices = Trace(), defaultdict(list)
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
            _name(trace, event)
    for event in events:
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index", "process_sort_index"), event
            continue
        assert event["ts"] >= 0, event
        track = (trace.processes[event["pid"]], trace.threads.get((event["pid"], event["tid"]), ""))
        match event["ph"]:
            case "X":
                begin = round(1000 * event["ts"])
                made = Slice(event["name"], begin, begin + round(1000 * event["dur"]), event["args"])
                assert event["dur"] >= 0, event
                assert track[1], event
                open_slices[track].append(made)
            case "i":
                assert event["s"] == "t", event
                assert track[1], event
                trace.instants.append((*track, event["name"], event["ts"], event["args"]))
            case "C":
                assert all(isinstance(value, int) for value in event["args"].values()), event
                trace.counters[event["name"]].append((event["ts"], event["args"]))
            case other:
                raise AssertionError(other)
    for track, found in open_slices.items():
        trace.slices[track] = _nested(found)
    for name, samples in trace.counters.items():
        assert [at for at, _ in samples] == sorted(at for at, _ in samples), name
    return trace


def _name(trace: Trace, event: dict[str, Any]) -> None:
    names: Any = trace.processes if event["name"] == "process_name" else trace.threads
    key = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
    assert key not in names, f"{event} is named twice"
    names[key] = event["args"]["name"]


def _nested(slices: list[Slice]) -> list[Slice]:
    """Of one thread: each lies within another or apart from it. Where two begin together, the file's order decides."""
    outer: list[Slice] = []
    stack: list[Slice] = []
    for one in sorted(slices, key=lambda one: one.begin):  # stable
        while stack and stack[-1].end <= one.begin:
            stack.pop()
        assert not stack or one.end <= stack[-1].end, f"{one} overlaps {stack[-1]}"
        (stack[-1].inner if stack else outer).append(one)
        stack.append(one)
    return outer
