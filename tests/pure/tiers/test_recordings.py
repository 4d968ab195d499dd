"""A recording of an engine behind a real stack, faults and all, plays back to the same events without any tier."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quire.core.events import Event, LoadFinished, RecordsStored, RequestEnded, RequestPreempted
from quire.core.request import Ending, Request
from quire.core.step import Step
from quire.core.tier import (
    Answer,
    TransferDone,
    TransferFailed,
    TransferIncomplete,
    TransferLanded,
    TransferStaged,
)
from quire.engine.engine import Engine
from quire.recording.answers import decode_answer, encode_answer
from quire.recording.recorder import RecordingEngine
from quire.recording.replay import Diverged, replay
from recorded_tiers import record
from scenes_of_tiers import Idle, small_plan


@pytest.mark.golden
@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (TransferDone(7), [7, True, "", False, True, True]),
        (TransferStaged(7), [7, True, "", False, True, False]),
        (TransferLanded(7), [7, True, "", False, False, True]),
        (TransferFailed(7, "on fire"), [7, False, "on fire", False, True, True]),
        (TransferIncomplete(7, "gone"), [7, False, "gone", True, True, True]),
    ],
)
def test_each_answer_of_a_tier_is_recorded_as_format_4_has_it(answer: Answer, fields: list[object]) -> None:
    """Recordings that exist stay readable: the fields of an answer, and their order, belong to the format."""
    assert json.loads(json.dumps(encode_answer(answer))) == fields
    assert decode_answer(fields) == answer


@pytest.mark.parametrize(("names", "sheets"), [(["full", "window"], 36), (["state", "full", "chunked"], 12)])
def test_a_recording_with_stores_and_loads_plays_back_event_by_event(
    tmp_path: Path, names: list[str], sheets: int
) -> None:
    path, again = tmp_path / "run.jsonl", list[Event]()
    told = record(path, names, sheets)
    happened = {type(event) for event in told}
    assert {RecordsStored, LoadFinished} <= happened, happened
    assert RequestPreempted in happened or "chunked" in names
    replay(path, listeners=[again.append])
    assert again == told


def test_a_replay_notices_that_another_page_would_be_stored(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, ["full", "window"], 36)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    line = next(line for line in lines if any(line.get("inputs", {}).get("places", [])))
    line["inputs"]["places"][0][1] = [59]
    path.write_text("\n".join(json.dumps(one) for one in lines))
    with pytest.raises(Diverged):
        replay(path)


class Refusing(Idle):
    """Cannot go on with the first row of its fifth step."""

    engine: Engine

    def launch(self, step: Step) -> None:
        super().launch(step)
        if step.number == 4:
            self.engine.failures.report(int(step.rows[0]), "its grammar allows nothing")


def test_a_request_that_could_not_go_on_ends_in_the_same_step_again(tmp_path: Path) -> None:
    path, told, again = tmp_path / "run.jsonl", list[Event](), list[Event]()
    runner = Refusing()
    with path.open("w") as file:
        engine = RecordingEngine(file, small_plan(["full"]), runner, clock=lambda: 0.0, listeners=[told.append])
        runner.engine = engine
        for number in range(3):
            engine.submit(Request(f"r{number}", np.arange(10 + number, dtype=np.int32), 20))
        engine.drain()
    assert [
        event.request for event in told if isinstance(event, RequestEnded) and event.ending is Ending.CANCELLED
    ] == ["r0"]
    replay(path, listeners=[again.append])
    assert again == told
