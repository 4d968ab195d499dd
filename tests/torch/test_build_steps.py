"""An engine is built in steps; each takes finished objects and returns one, and can be tried alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.build.engine import BuiltEngine, build_engine, make_engine, prepare
from quire.build.identity import model_identity
from quire.build.model import meter_of, place_model, read_text, read_weights
from quire.build.runner import StartReport, make_runner, record_steps, tables_of
from quire.core.errors import DoesNotFit, QueueFull
from quire.core.request import Request
from quire.core.rules import Rules
from quire.core.step import Runner, Step, StepResult
from quire.engine.engine import Engine
from quire.options.peer import Peer, Role
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan.settings import Budget, Settings
from quire.recording.recorder import RecordingEngine
from quire.serve.engine_process import FreezingRunner
from tiny_folder import make_folder

CPU = RunOptions(device="cpu")
SETTINGS, POOL = Settings(max_length=64, max_requests=2, batch_tokens=16), Budget(pool_bytes=4 << 20)
PROMPT = np.arange(5, 25, dtype=np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"), layers=1)


def built(folder: Path, options: RunOptions = CPU) -> BuiltEngine:
    return build_engine(prepare(folder, options, settings=SETTINGS, budget=POOL))


def answer(engine: Engine) -> list[int]:
    stream = engine.submit(Request("r", PROMPT, 6))
    engine.drain()
    return stream.tokens().tolist()


def test_a_checkpoint_is_prepared_without_its_weights(folder: Path, tmp_path: Path) -> None:
    """Its configuration is enough for a plan, and for the refusal of one."""
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    prepared = prepare(tmp_path, CPU, settings=SETTINGS, budget=POOL)
    assert (prepared.folder, prepared.options.device) == (tmp_path, "cpu")
    assert prepared.plan.kv_dtype == "fp32", "as the weights"
    with pytest.raises(DoesNotFit):
        prepare(tmp_path, CPU, settings=SETTINGS, budget=Budget(pool_bytes=1 << 12))


def test_the_steps_one_by_one_make_the_engine_that_is_built_at_once(folder: Path) -> None:
    prepared = prepare(folder, CPU, settings=SETTINGS, budget=POOL)
    plan, options, text = prepared.plan, prepared.options, read_text(folder, None)
    assert meter_of(options) is None
    placed = place_model(plan, read_weights(folder, plan, options), options)
    runner = make_runner(plan, placed, text.grammars)
    engine = make_engine(plan, runner, options, failures=text.failures)
    assert record_steps(runner, placed, tables_of(engine)) == StartReport(), "a CPU records nothing"
    assert answer(engine) == answer(built(folder).engine)


def test_without_tiers_nothing_is_attached_and_with_them_the_runner_is_made_with_its_staging(folder: Path) -> None:
    bare = built(folder)
    assert (bare.stack, bare.tiers) == (None, ())
    assert bare.engine.runner.staging is None  # type: ignore[attr-defined]
    tiered = built(folder, RunOptions(device="cpu", tiers=Tiers(1 << 20)))
    assert tiered.stack is not None
    assert tiered.engine.runner.staging is not None  # type: ignore[attr-defined]
    assert [line.partition(":")[0] for line in tiered.tiers] == ["host"]
    assert answer(tiered.engine) == answer(bare.engine)
    tiered.stack.close()


@pytest.mark.parametrize("role", list(Role))
def test_the_hooks_of_a_peer_are_finished_when_the_engine_is(folder: Path, tmp_path: Path, role: Role) -> None:
    """A prefill engine listens; a decode engine has the peer as its last tier, whether it answers or not."""
    (tmp_path / "secret").write_bytes(b"known to two of us")
    tiers = Tiers(1 << 20, peer=Peer(role=role, host="127.0.0.1", port=0, secret=tmp_path / "secret"))
    with_peer = built(folder, RunOptions(device="cpu", tiers=tiers))
    assert (with_peer.hooks.hand_over is not None) == (role is Role.DECODE)
    assert (with_peer.hooks.server is not None) == (role is Role.PREFILL)
    assert with_peer.hooks.wakeup is not None
    assert with_peer.stack is not None
    assert [tier.name for tier in with_peer.stack.tiers] == (["peer"] if role is Role.DECODE else [])
    assert with_peer.hooks.counters()["waiting"] == 0
    with_peer.hooks.close()
    with_peer.stack.close()


class Counting:
    """A runner around another one."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.steps = runner, 0

    def launch(self, step: Step) -> None:
        self.steps += 1
        self.runner.launch(step)

    def collect(self) -> StepResult:
        return self.runner.collect()


def test_what_wraps_the_runner_is_there_from_the_first_step(folder: Path, tmp_path: Path) -> None:
    """A recording has it inside: what the wrapper does is part of what the engine is given."""
    prepared = prepare(folder, CPU, settings=SETTINGS, budget=POOL)
    counting = build_engine(prepared, wrap=Counting)
    answer(counting.engine)
    assert isinstance(counting.engine.runner, Counting)
    assert counting.engine.runner.steps == counting.engine.scheduler.steps > 0
    recorded = prepare(folder, RunOptions(device="cpu", record=tmp_path / "run.jsonl"), settings=SETTINGS, budget=POOL)
    both = build_engine(recorded, wrap=lambda runner: FreezingRunner(runner, tmp_path / "absent"))
    assert isinstance(both.engine, RecordingEngine)
    assert isinstance(both.engine.runner._runner, FreezingRunner)  # type: ignore[attr-defined]
    both.engine.close()


def test_rules_and_overlap_are_the_engines(folder: Path) -> None:
    options = RunOptions(device="cpu", rules=Rules(queue_bound=3), overlap=1)
    engine = built(folder, options).engine
    assert engine.overlap == 1
    for number in range(3):
        engine.submit(Request(f"r{number}", PROMPT, 2))
    with pytest.raises(QueueFull):
        engine.submit(Request("one more", PROMPT, 2))


def test_records_are_named_after_weights_that_leave_the_process_and_after_data_types(folder: Path) -> None:
    alone, shared = Tiers(1 << 20), Tiers(1 << 20, disk=folder)
    own = model_identity(folder, RunOptions(device="cpu", tiers=alone), "")
    assert own == "fp32"
    other = model_identity(folder, RunOptions(device="cpu", tiers=shared), "e4m3")
    assert len(other) == 64 + len("fp32e4m3")
