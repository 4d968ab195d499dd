"""A recording as a trace for Perfetto, read back by a reader of the documented format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.events import (
    Event,
    LoadStarted,
    RequestAccepted,
    RequestEnded,
    RequestEvent,
    RequestPreempted,
    StepLaunched,
)
from quire.core.request import Request
from quire.recording.recorder import RecordingEngine
from quire.recording.replay import replay
from quire.traces.perfetto import write_perfetto
from recorded_tiers import record
from scenes_of_tiers import Idle, small_plan
from trace_files import Trace, read_trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """With loads, preemptions and cancelled requests."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    return path, record(path, ["full", "window"], 36)


@pytest.fixture(scope="module")
def trace(recorded: tuple[Path, list[Event]]) -> Trace:
    target = recorded[0].with_name("trace.json")
    write_perfetto(recorded[0], target)
    return read_trace(target)


def times(events: list[Event], kind: type[RequestEvent]) -> Counter[str]:
    return Counter(event.request for event in events if isinstance(event, kind))


def test_the_phases_of_a_request_follow_one_another_and_add_up_to_its_time(trace: Trace) -> None:
    for name, whole in trace.requests().items():
        phases = whole.inner
        assert phases[0].name == "queue" or phases[0].begin == whole.begin
        assert [one.begin for one in phases] == [whole.begin, *(one.end for one in phases[:-1])], name
        assert phases[-1].end == whole.end, name
        assert not any(one.inner for one in phases)


def test_each_event_of_a_request_is_in_its_row(recorded: tuple[Path, list[Event]], trace: Trace) -> None:
    """A request that is preempted and admitted again by one step has no time between, and no slice of it."""
    _, events = recorded
    requests, shown = trace.requests(), 0
    assert set(requests) == set(times(events, RequestAccepted))
    ended = {event.request: event for event in events if isinstance(event, RequestEnded)}
    for name, whole in requests.items():
        found = Counter(one.name for one in whole.inner)
        assert found["preempted"] <= whole.args["preemptions"] == times(events, RequestPreempted)[name]
        shown += found["preempted"]
        assert found["load"] == times(events, LoadStarted)[name]
        assert (whole.args["ending"], whole.args.get("outputs", 0)) == (ended[name].ending, ended[name].outputs)
    assert times(events, LoadStarted).total() > 0
    assert shown > 0


def test_a_request_decodes_from_its_first_token_on(recorded: tuple[Path, list[Event]], trace: Trace) -> None:
    """It has its first token when the iteration ends that collected it, as a replay of this step shows."""
    whole = trace.requests()["r0"]
    decode = next(one for one in whole.inner if one.name == "decode")
    steps = [one for outer in [trace.slices["engine", "steps"]] for one in outer]
    place = next(place for place, one in enumerate(steps) if one.end == decode.begin)
    launched = sum(one.name.startswith("step") for one in steps[: place + 1])
    assert len(replay(recorded[0], launched).outputs("r0")) == 1
    assert len(replay(recorded[0], launched - 1).outputs("r0")) == 0


def test_a_preemption_says_why(trace: Trace) -> None:
    preempted = [one for whole in trace.requests().values() for one in whole.inner if one.name == "preempted"]
    assert preempted
    assert all("needs" in one.args["reason"] for one in preempted)


def test_steps_are_apart_and_have_their_numbers(recorded: tuple[Path, list[Event]], trace: Trace) -> None:
    steps = trace.slices["engine", "steps"]
    assert not any(one.inner for one in steps)
    launched = [event for event in recorded[1] if isinstance(event, StepLaunched)]
    assert [one.args for one in steps if one.name != "collect"] == [
        {"rows": event.rows, "tokens": event.tokens} for event in launched
    ]
    assert [one.name for one in steps if one.name != "collect"] == [f"step {event.step}" for event in launched]


def test_counters_are_what_a_replay_holds(recorded: tuple[Path, list[Event]], trace: Trace, tmp_path: Path) -> None:
    """At every sample the sheets add up to the pool; at a step they are the engine's."""
    path, _ = recorded
    sheets = replay(path).scheduler.memories[0].stage.sheets
    assert all(sum(values.values()) == sheets for _, values in trace.counters["sheets"])
    for step in (20, 60, 100):
        write_perfetto(path, tmp_path / "part.json", step)
        part, engine = read_trace(tmp_path / "part.json"), replay(path, step)
        (memory,) = engine.scheduler.memories
        held = {kind.name: int((memory.pool.owner == n).sum()) for n, kind in enumerate(memory.stage.kinds)}
        assert part.counters["sheets"][-1][1] == {**held, "free": memory.pool.free_sheets}
        assert part.counters["pool bytes"][-1][1] == {
            name: count * memory.stage.sheet_bytes for name, count in held.items()
        }
        running, waiting = len(engine.running()), len(engine.scheduler.queue)
        assert part.counters["requests"][-1][1] == {"running": running, "waiting": waiting}


def test_it_contains_numbers_and_no_prompt(trace: Trace) -> None:
    """No argument is a list, so no tokens; the text of a reason names requests and numbers."""
    everything = [one.args for whole in trace.requests().values() for one in (whole, *whole.inner)]
    everything += [args for *_, args in trace.instants]
    assert {type(value) for args in everything for value in args.values()} <= {int, str, bool}


def test_a_recording_without_times_of_calls_is_written_too(recorded: tuple[Path, list[Event]], tmp_path: Path) -> None:
    """Recordings that were made before have the times of steps: calls then happen when the step before began."""
    lines = [json.loads(line) for line in recorded[0].read_text().splitlines()]
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "at"}) + "\n" for line in lines))
    write_perfetto(old, tmp_path / "old.json")
    assert len(read_trace(tmp_path / "old.json").requests()) == 60


def test_requests_that_have_not_ended_are_cut_where_the_recording_ends(tmp_path: Path) -> None:
    path, target = tmp_path / "run.jsonl", tmp_path / "out.json"
    clock = iter(np.arange(1000) / 8)
    with path.open("w") as file:
        engine = RecordingEngine(file, small_plan(["full"]), Idle(), clock=lambda: float(next(clock)))
        for number in range(3):
            engine.submit(Request(f"r{number}", np.arange(10 + number, dtype=np.int32), 20))
        for _ in range(9):
            engine.step()
    write_perfetto(path, target)
    requests = read_trace(target).requests()
    assert {one.args["ending"] for one in requests.values()} == {"the recording ends"}
    assert {one.inner[-1].name for one in requests.values()} == {"decode"}


def test_the_command_writes_the_file_and_says_how_to_open_it(
    recorded: tuple[Path, list[Event]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "trace.json"
    assert main(["replay", str(recorded[0]), "--to-step", "30", "--perfetto", str(target)]) == 0
    printed = capsys.readouterr().out
    assert f"{target} is written: open it in Perfetto" in printed
    assert "after 30 steps" in printed
    assert read_trace(target).requests()


def test_a_file_that_cannot_be_written_is_one_line_and_nothing_is_left(
    recorded: tuple[Path, list[Event]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"^cannot write .*gone/trace.json: No such file or directory$"):
        write_perfetto(recorded[0], tmp_path / "gone" / "trace.json")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(recorded[0].read_text().replace('"batch": ', '"batch": 1', 1))
    assert main(["replay", str(broken), "--perfetto", str(tmp_path / "trace.json")]) == 1
    assert "is not the one that was recorded" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [broken]
