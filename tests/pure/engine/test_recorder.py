"""Recordings: everything that an engine is given is written down, and plays back to any step."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doubles import silent_tier
from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.events import Event
from quire.core.request import Ending
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.core.step import Capture, Step, StepResult
from quire.engine import history
from quire.engine.engine import Engine
from quire.recording import replay as replaying
from quire.recording.recorder import RecordingEngine, checksum, open_recording, require_recordable
from quire.recording.replay import Diverged, replay
from shadow import ShadowRunner
from small_engines import request, small_plan


def record(path: Path) -> Engine:
    runner = ShadowRunner()
    now = [0.0]
    with path.open("w") as file:
        engine = RecordingEngine(
            file, small_plan(["full", "window"], None), runner, tier=silent_tier(1), clock=lambda: now[0]
        )
        runner.attach(engine.scheduler)
        for i in range(4):
            engine.submit(request(f"r{i}", 100 + i, 20, shared=80, stop_tokens=(5,)))
        with pytest.raises(InputError):
            engine.submit(request("r0", 100, 20))
        while engine.step():
            now[0] += 1.0
            if engine.scheduler.steps == 12:
                engine.cancel("r2")
    return engine


def test_a_recording_plays_back_to_any_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it ends as it ended; half of it is where it was."""
    path = tmp_path / "run.jsonl"
    recorded = record(path)
    again = replay(path)
    assert again.scheduler.steps == recorded.scheduler.steps
    assert again.counters.events == recorded.counters.events
    assert replay(path, to_step=10).scheduler.steps == 10
    assert main(["replay", str(path), "--to-step", "10"]) == 0
    assert "after 10 steps" in capsys.readouterr().out
    assert main(["replay", str(path), "--explain", "r3"]) == 0
    assert "accepted" in capsys.readouterr().out


def test_requests_that_are_over_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that ended last come first; nothing is said of a table that would be empty."""
    path = tmp_path / "run.jsonl"
    names = record(path).history.names
    assert main(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"over: {', '.join(reversed(names[-10:]))}" in out
    assert "why it waits" not in out
    assert main(["replay", str(path), "--to-step", "1"]) == 0
    assert "over: " not in capsys.readouterr().out


@pytest.mark.story
def test_a_name_that_never_came_is_told_with_those_that_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's names are seen nowhere else: the first ten, how many there are, and the one that was meant."""
    path = tmp_path / "run.jsonl"
    steps = record(path).scheduler.steps
    assert main(["replay", str(path), "--explain", "r33"]) == 2
    told = capsys.readouterr().err
    assert told.endswith(f"no request named r33 came up to step {steps}, but 4 did: r2, r0, r1, r3: did you mean r3?\n")
    with path.open("w") as file:
        engine = RecordingEngine(file, small_plan(["full"], None), ShadowRunner())
        for i in range(12):
            engine.submit(request(f"r{i}", 100, 20))
    assert main(["replay", str(path), "--explain", "nobody"]) == 2
    assert capsys.readouterr().err.endswith("but 12 did: r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, …\n")


@pytest.mark.story
def test_a_request_is_found_by_the_id_of_its_answer_and_by_the_clients_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server's names are the id without its prefix, and the number of the choice: the first one is meant. Of several
    calls to which a client gave one id, it is the latest."""
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        engine = RecordingEngine(file, small_plan(["full"], None), ShadowRunner())
        for name, own in (("66bb-0", "bob-5"), ("5f0c-1", "bob-5"), ("5f0c-0", "bob-5"), ("77aa-0", "")):
            engine.submit(request(name, 100, 20, client_id=own))
    for name in ("chatcmpl-5f0c", "cmpl-5f0c", "5f0c", "5f0c-0", "bob-5"):
        assert main(["replay", str(path), "--explain", name]) == 0
        assert capsys.readouterr().out.startswith("5f0c-0 ")
    assert main(["replay", str(path), "--explain", "chatcmpl-5f0"]) == 2


@pytest.mark.story
def test_a_name_that_may_be_forgotten_is_not_told_as_one_that_never_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "REQUESTS_REMEMBERED", 3)
    path = tmp_path / "run.jsonl"
    steps = record(path).scheduler.steps
    assert main(["replay", str(path), "--explain", "r2"]) == 2
    told = capsys.readouterr().err
    assert f"request r2 is not among the latest 3 up to step {steps} (--to-step goes back to earlier ones): r0" in told


@pytest.mark.story
@pytest.mark.parametrize("step", [-1, 43])
def test_a_step_that_a_recording_does_not_have_is_refused_with_those_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    path = tmp_path / "run.jsonl"
    assert record(path).scheduler.steps == 42
    assert main(["replay", str(path), "--to-step", str(step)]) == 2
    assert capsys.readouterr().err == f"quire: {path} has no step {step}: choose one from 0 to 42\n"
    for there in (0, 42):
        assert replay(path, there).scheduler.steps == there


def test_a_recording_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"max_tokens": 20', '"max_tokens": 3')
    path.write_text("\n".join(lines))
    with pytest.raises(Diverged):
        replay(path)
    (tmp_path / "other").write_text("{}")
    with pytest.raises(InputError, match="is not a recording of format"):
        replay(tmp_path / "other")


class FailingRunner(ShadowRunner):
    """Raises something once, when it is to collect its sixth step."""

    def collect(self) -> StepResult:
        self.collected = getattr(self, "collected", 0) + 1
        if self.collected == 6:
            raise RuntimeError("the device is gone")
        return super().collect()


def recording(path: Path, runner: ShadowRunner | None = None) -> tuple[RecordingEngine, list[Event]]:
    told: list[Event] = []
    runner = runner or ShadowRunner()
    engine = RecordingEngine(open_recording(path), small_plan(["full", "window"], 60), runner, listeners=[told.append])
    runner.attach(engine.scheduler)
    return engine, told


def test_a_recording_knows_that_the_cache_was_dropped(tmp_path: Path) -> None:
    path, again = tmp_path / "run.jsonl", list[Event]()
    engine, told = recording(path)
    for name, scope in (("a", None), ("b", "mine"), ("c", None)):
        engine.submit(request(name, 150, 5, shared=150, scope="mine"))
        engine.drain()
        assert engine.drop_cache(scope) > 0
    engine.close()
    replay(path, listeners=[again.append])
    assert again == told


def test_a_step_that_raises_is_in_the_recording_and_so_is_what_comes_behind_it(tmp_path: Path) -> None:
    path, again = tmp_path / "run.jsonl", list[Event]()
    engine, told = recording(path, FailingRunner())
    engine.submit(request("a", 150, 20))
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.drain()
    line = json.loads(path.read_text().splitlines()[-1])
    assert line["inputs"]["raised"] == ["collect", "RuntimeError('the device is gone')"]
    stream = engine.submit(request("b", 50, 5))
    engine.drain()
    engine.close()
    assert stream.ending is Ending.LENGTH
    assert json.loads(path.read_text().splitlines()[-1])["step"] == engine.scheduler.steps
    replay(path, listeners=[again.append])
    assert again == told


def test_a_torn_recording_is_played_up_to_where_it_is_torn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    steps = record(path).scheduler.steps
    text = path.read_text()
    path.write_text(text[:-8])
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr()
    assert f"after {steps} steps" in shown.out, "the last turn launched nothing"
    assert shown.err.strip().endswith(f"is torn in line {len(text.splitlines())}: it is played up to there")
    zipped, said = tmp_path / "run.jsonl.gz", list[str]()
    zipped.write_bytes(gzip.compress(text.encode())[:-200])
    assert 20 < replay(zipped, say=said.append).scheduler.steps < steps
    assert "run.jsonl.gz is torn behind line" in said[0]
    path.write_text(text[:300] + text[400:])
    with pytest.raises(InputError, match="is not a recording"):
        replay(path)


@pytest.mark.story
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("5\n", "is not a recording: a line is no object"),
        ('{"quire_recording": 5}\n', "is damaged in line 1 (KeyError('rules'))"),
        ('{"quire_recording": 5, "rules": {"policy": "evil"}}\n', "is damaged in line 1 (ValueError("),
        ("a" * 200, "is not a recording: a line has more than 100 characters"),
    ],
    ids=["no object", "no rules", "no policy", "no end"],
)
def test_a_file_of_a_stranger_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, why: str
) -> None:
    """These were tracebacks, and 3 MB that unpack to one line of 3 GB were read whole."""
    monkeypatch.setattr(replaying, "LONGEST_LINE", 100)
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(InputError, match=re.escape(why)):
        replay(tmp_path / "run.jsonl.gz")


WHOLE = gzip.compress(json.dumps({"quire_recording": 3}).encode() * 1000, mtime=0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"plain", "Not a gzipped file"),
        (WHOLE[:20] + b"\xff" * 20 + WHOLE[40:], "is not a recording: Error -3"),
        (WHOLE[:15], "is torn behind line 0"),
    ],
    ids=["plain", "damaged", "torn"],
)
def test_a_gzip_that_is_none_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert why in capsys.readouterr().err


def test_seeds_and_everything_else_that_was_asked_for_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    engine, _ = recording(path)
    asked = {
        "a": Sampling(0.7, top_p=0.9, seed=1 << 62, logit_bias=((5, 1.5),), stop=("x", "y")),
        "b": Sampling(prompt_logprobs=2, grammar=Grammar(GrammarSort.REGEX, "a+")),
    }
    for name, sampling in asked.items():
        engine.submit(request(name, 100, 5, sampling=sampling))
    engine._file.flush()
    again = replay(path)
    assert {name: stream.request.sampling for name, stream in again.streams.items()} == asked
    engine.close()
    assert replay(path).scheduler.is_idle()


def test_a_turn_without_anything_to_do_leaves_no_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    engine, _ = recording(path)
    for _ in range(100):
        engine.step()
    engine.close()
    assert len(path.read_text().splitlines()) == 1


def test_a_recording_that_is_there_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the file that is written instead is told by its name."""
    path = tmp_path / "run.jsonl"
    names = []
    for _ in range(3):
        with open_recording(path) as file:
            names.append(Path(file.name).name)
            assert Path(file.name).stat().st_mode & 0o777 == 0o600
    assert names == ["run.jsonl", "run-1.jsonl", "run-2.jsonl"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{path} is there already and stays: this engine is recorded in {path.with_name(name)}")
        for name in names[1:]
    ]
    with pytest.raises(InputError, match=r"name one without \.gz"):
        open_recording(tmp_path / "run.jsonl.gz")
    with pytest.raises(InputError, match=r"cannot record to .*: No such file or directory"):
        open_recording(tmp_path / "nowhere" / "run.jsonl")


FULL = Path("/dev/full")
needs_a_full_device = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


@needs_a_full_device
@pytest.mark.story
def test_a_disk_that_is_full_ends_the_recording_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written until then plays back; the reason is told once."""
    path = tmp_path / "run.jsonl"
    engine, _ = recording(path)
    stream = engine.submit(request("a", 100, 20))
    for _ in range(8):
        engine.step()
    steps = engine.scheduler.steps
    with FULL.open("w") as full, caplog.at_level(logging.WARNING, "quire.recording"):
        os.dup2(full.fileno(), engine._file.fileno())
        engine.drain()
        engine.submit(request("b", 100, 5))
        engine.cancel("b")
        engine.drop_cache()
        engine.close()
    assert stream.ending is Ending.LENGTH
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} ends here, and the engine goes on without a recording: No space left on device"
    ]
    assert replay(path).scheduler.steps == steps


@needs_a_full_device
@pytest.mark.story
def test_an_engine_starts_where_not_even_the_first_line_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    runner = ShadowRunner()
    with caplog.at_level(logging.WARNING, "quire.recording"):
        engine = RecordingEngine(FULL.open("w", buffering=1), small_plan(["full"], 60), runner)
    runner.attach(engine.scheduler)
    stream = engine.submit(request("a", 100, 5))
    engine.drain()
    engine.close()
    assert stream.ending is Ending.LENGTH
    assert len(caplog.records) == 1


def test_whether_a_recording_can_be_written_is_found_out_without_leaving_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run.jsonl").write_text("an older one")
    require_recordable(tmp_path / "run.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]
    assert not caplog.messages, "no file is named that nobody will find"
    assert (tmp_path / "run.jsonl").read_text() == "an older one"
    with pytest.raises(InputError, match=r"name one without \.gz"):
        require_recordable(tmp_path / "run.jsonl.gz")
    with pytest.raises(InputError, match=r"cannot record to .*: No such file or directory"):
        require_recordable(tmp_path / "nowhere" / "run.jsonl")


def test_the_states_that_a_step_captures_are_part_of_what_is_compared() -> None:
    """Red if a replay that captures another state, or none, passes for what was recorded."""
    none = np.empty(0, dtype=np.int64)
    plain = Step(0, none, none, none, none.astype(np.bool_), none, none.astype(np.int32))
    captures = [Capture(0, tokens, 0, 1, np.array([page])) for tokens, page in ((8, 2), (9, 2), (8, 3))]
    steps = [plain, *(replace(plain, captures=(one,)) for one in captures)]
    assert len({checksum(step) for step in steps}) == len(steps)
