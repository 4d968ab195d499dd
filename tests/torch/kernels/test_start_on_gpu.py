"""A checkpoint starts as on a GPU, on a CPU under Triton's interpreter: memory is the only thing that is made up."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import quire.llm
from command import run_text
from quire.build.engine import Prepared, build_engine
from quire.build.plan import read_shape, run_settings
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, InputError, ModelError
from quire.core.events import TokensDrafted
from quire.core.step import Step
from quire.fetch.find import converted
from quire.llm import LLM
from quire.models.draft_model import with_draft_model
from quire.options.run import RunOptions
from quire.plan import ledger
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.batch import StepBatch
from quire.worker.backends.triton_backend import Triton
from quire.worker.model import compilation, model
from quire.worker.model.experts import KernelExperts
from quire.worker.model.invariant import InvariantLinear
from quire.worker.sampling.sampler import Sampler
from quire.worker.steps import boot, device_runner
from quire.worker.steps.device_runner import DeviceRunner
from quire.worker.steps.meter import Meter
from quire.worker.support import check_model
from quire.worker.support.tiny import tiny_config
from tiny_folder import make_folder, save_folder

SETTINGS = Settings(max_length=64, max_requests=2, batch_tokens=16)
POOL = Budget(pool_bytes=4 << 20)
STEP_BYTES = 1 << 20


class MadeUp(Meter):
    def __init__(self, total_bytes: int = 1 << 30, step_bytes: int = STEP_BYTES) -> None:
        super().__init__(torch.device("cpu"))
        self.total_bytes, self.step_bytes, self.unexplained_bytes = total_bytes, step_bytes, 0

    def free(self) -> int:
        held = sum(size for name, size in self._lines.items() if name != "activations")
        return self.total_bytes - held - self.unexplained_bytes

    def allocated(self) -> int:
        beside = sum(size for name, size in self._lines.items() if name not in ("weights", "activations"))
        return (3 << 20) + beside

    def start_peak(self) -> None:
        pass

    def peak(self) -> int:
        return self.allocated() + self.step_bytes

    def taken(self) -> int:
        return self.total_bytes - self.free()


PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where what is compiled is kept."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("QUIRE_CACHE", *PLACES):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture(autouse=True)
def round_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused here does not depend on what a real GPU's driver takes."""
    for name, mebibytes in (("WORKSPACE_BYTES", 256), ("GRAPHS_BYTES", 512), ("GRAPH_BYTES", 0)):
        monkeypatch.setattr(ledger, name, mebibytes << 20)


def prepared(
    folder: Path, settings: Settings = SETTINGS, budget: Budget = POOL, draft: Path | None = None, **options: Any
) -> Prepared:
    """A plan for a GPU, without asking one for its memory."""
    chosen = RunOptions(device="cuda", dtype=DType.FP32, draft_model=draft, **options)
    settings = run_settings(settings, chosen)
    shape = read_shape(folder, chosen)
    shape = shape if draft is None else with_draft_model(shape, read_shape(draft, chosen))
    return Prepared(folder, make_plan(shape, settings, budget).require_fit(), chosen)


def on_gpu(folder: Path, *given: Any, total_bytes: int = 1 << 30, step_bytes: int = STEP_BYTES, **named: Any) -> LLM:
    """`cuda` is the CPU: everything is real but the memory."""
    return LLM.on(build_engine(prepared(folder, *given, **named), meter=MadeUp(total_bytes, step_bytes)))


def on_cpu(folder: Path) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL, dtype=DType.FP32, device="cpu")


def test_it_yields_what_a_cpu_yields_and_its_ledger_is_measured(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, layers=1)
    llm = on_gpu(folder)
    assert isinstance(llm.engine.runner, DeviceRunner)
    expected = on_cpu(folder).generate("the fox", max_tokens=3)
    assert llm.generate("the fox", max_tokens=3) == expected
    measured = {line.name: line.measured_bytes for line in llm.parts.report.measured}
    stage = llm.plan.stages[0]
    assert measured["pool"] == stage.pool_bytes + stage.sheet_bytes
    assert measured["activations"] == STEP_BYTES
    told = llm.parts.report.lines()
    assert told[0] == "decode steps are recorded for 1, 2 rows"
    assert told[1] == "kernels: full on triton"
    assert told[2].startswith("memory: weights 3.00 MiB, planned ")
    assert told[3].startswith("memory: activations 1.00 MiB, planned ")


def test_packed_weights_are_multiplied_by_kernels(tmp_path: Path) -> None:
    folder = converted(make_folder(tmp_path, layers=1), weights="int4")
    llm = on_gpu(folder)
    assert llm.generate("the fox", max_tokens=3) == on_cpu(folder).generate("the fox", max_tokens=3)
    with pytest.raises(ModelError, match=r"whose weight is packed, is not computed in an order"):
        on_gpu(folder, deterministic=True)


@pytest.mark.parametrize(("name", "weights"), [("qwen3_moe", "fp8"), ("gpt_oss", "int4")])
def test_experts_and_their_packed_weights_are_on_kernels(name: str, weights: str, tmp_path: Path) -> None:
    folder = converted(save_folder(tmp_path, tiny_config(name)), weights=weights)
    llm = on_gpu(folder)
    kernels = [one for one in llm.engine.runner.model.model.modules() if isinstance(one, KernelExperts)]  # type: ignore[attr-defined]
    assert kernels
    assert llm.generate("the fox", max_tokens=3) == on_cpu(folder).generate("the fox", max_tokens=3)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ("cache/compiled", "cache/compiled/triton")),
        ({PLACES[0]: "mine"}, ("mine", "mine/triton")),
        ({PLACES[1]: "mine"}, ("cache/compiled", "mine")),
        ({"QUIRE_CACHE": "file/cache"}, (None, None)),
    ],
)
def test_what_is_compiled_is_kept_in_the_cache_folder_unless_another_place_is_named(
    named: dict[str, str], expected: tuple[str | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name in PLACES:
        monkeypatch.delenv(name)
    for name, place in ({"QUIRE_CACHE": "cache"} | named).items():
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.setattr(model, "load", MagicMock(side_effect=InputError("far enough")))
    with pytest.raises(InputError, match="far enough"):
        on_gpu(make_folder(tmp_path))
    assert [os.environ.get(name) for name in PLACES] == [place and str(tmp_path / place) for place in expected]


class Carried(torch.nn.Module):
    """Weights that know where they lie, and derive nothing from a call."""

    place = "main memory"

    def to(self, device: object) -> Carried:
        self.place = f"moved to {device}"
        return self


@pytest.mark.story
def test_weights_are_tried_where_they_will_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in main memory before: a processor may stop at products in bf16, and a large model takes its time."""

    def check(weights: Carried, _stage: object) -> None:
        raise InputError(f"tried, {weights.place}")

    monkeypatch.setattr(model, "load", lambda *_given: Carried())
    monkeypatch.setattr(check_model, "check_model", check)
    with pytest.raises(InputError, match="tried, moved to cpu"):
        on_gpu(make_folder(tmp_path))


def test_a_pool_that_leaves_no_room_for_what_was_measured_is_refused(tmp_path: Path) -> None:
    # 3 of weights, 1 of a step, 512 of graphs, 4 of the pool
    with pytest.raises(DoesNotFit, match=r"lower the pool to 2\.\d+ MiB"):
        on_gpu(make_folder(tmp_path), total_bytes=519 << 20)


@pytest.mark.story
@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (Budget(1000 << 20, 0.9), r"exceed the 900\.00 MiB that may be used by 24\.38 MiB: lower the pool to 106\.94"),
        (Budget(1950 << 20, 0.4, pool_bytes=4 << 20), r"exceed the 780\.00 MiB .*: lower --max-requests or --batch-"),
    ],
)
def test_a_memory_that_was_named_binds_what_is_measured(tmp_path: Path, limit: Budget, told: str) -> None:
    """Although the device has room for all of it."""
    with pytest.raises(DoesNotFit, match=told):
        on_gpu(make_folder(tmp_path), budget=limit, total_bytes=8 << 30, step_bytes=790 << 20)


def test_recordings_that_leave_a_step_too_little_of_what_was_named_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = MadeUp.note
    monkeypatch.setattr(
        MadeUp, "note", lambda self, name, size: note(self, name, 900 << 20 if name == "graphs" else size)
    )
    limit = Budget(1000 << 20, 0.9, pool_bytes=4 << 20)
    with pytest.raises(DoesNotFit, match=r"exceed the 900\.00 MiB that may be used by \d"):
        on_gpu(make_folder(tmp_path, layers=1), budget=limit, total_bytes=8 << 30)


@pytest.mark.parametrize(("others", "libraries", "is_refused"), [(0, 0, 0), (900, 0, 0), (0, 900, 1), (900, 900, 1)])
def test_what_libraries_take_counts_and_what_others_took_does_not(
    tmp_path: Path, others: int, libraries: int, is_refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In MiB. Kernels that are loaded, and what they keep, are this process's: no line explains them, and nobody lives
    off what the fraction leaves free. Memory that was in use before may be another process's."""
    meter = MadeUp(8 << 30)
    meter.unexplained_bytes = others << 20
    meter.begin()

    def note(self: MadeUp, name: str, size: int) -> None:
        Meter.note(self, name, size)
        self.unexplained_bytes = others + libraries << 20

    monkeypatch.setattr(MadeUp, "note", note)
    limit = Budget(2400 << 20, 0.5, pool_bytes=400 << 20)
    folder = make_folder(tmp_path, layers=1)
    if is_refused:
        with pytest.raises(DoesNotFit, match=r"exceed the 1\.17 GiB that may be used by \d+\.\d+ MiB: lower the pool"):
            build_engine(prepared(folder, budget=limit), meter=meter)
    else:
        assert build_engine(prepared(folder, budget=limit), meter=meter).report.measured


def test_where_no_memory_was_named_the_device_alone_binds(tmp_path: Path) -> None:
    """Estimates may be off as long as there is room: the fraction is there for that."""
    limit = Budget(1000 << 20, 0.9, is_whole_device=True)
    llm = on_gpu(make_folder(tmp_path, layers=1), budget=limit, total_bytes=8 << 30, step_bytes=790 << 20)
    assert llm.plan.limit_bytes is None


@pytest.mark.story
def test_the_steps_that_are_measured_draw_and_have_the_tables_of_penalties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the first penalty finds room for them, if the pool fits beside these steps; and so do the layers
    of all steps behind that one."""
    held: list[int] = []
    samplers: list[Sampler] = []

    class Watched(Sampler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            samplers.append(self)

        def sample(self, *given: Any) -> torch.Tensor:
            held.append(self.penalties.size_bytes)
            return super().sample(*given)

    class Tried(model.TorchModel):
        def forward(self, *given: Any) -> torch.Tensor:
            held.extend(one.penalties.size_bytes for one in samplers[-1:])
            return super().forward(*given)

    monkeypatch.setattr(boot, "Sampler", Watched)
    monkeypatch.setattr(boot, "TorchModel", Tried)
    llm = on_gpu(make_folder(tmp_path, layers=1))
    vocabulary = llm.engine.runner.model.vocab_size  # type: ignore[attr-defined]
    assert held[:4] == 4 * [5 * SETTINGS.max_requests * vocabulary]


@pytest.mark.story
@pytest.mark.parametrize("batch_tokens", [16, 2])
def test_a_step_at_the_end_of_the_longest_request_is_measured_too(
    tmp_path: Path, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention cuts long rows into pieces, whose results take memory; and with no more tokens than rows, only there
    some row has several."""
    prepare, seen = model.TorchModel.prepare, list[tuple[list[int], list[int]]]()

    def noting(self: model.TorchModel, step: Step, *given: Any) -> StepBatch:
        seen.append((step.starts.tolist(), step.counts.tolist()))
        return prepare(self, step, *given)

    monkeypatch.setattr(model.TorchModel, "prepare", noting)
    settings = replace(SETTINGS, batch_tokens=batch_tokens)
    on_gpu(make_folder(tmp_path, layers=1), settings)
    assert seen[:2] == [([64 - batch_tokens], [batch_tokens]), ([0, 0], 2 * [batch_tokens // 2])]


def test_a_request_that_must_not_depend_on_others_runs_on_kernels_that_see_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compilation, "compile_layers", lambda _model, is_invariant: is_invariant or pytest.fail("not told")
    )
    llm = on_gpu(make_folder(tmp_path, layers=1), deterministic=True)
    assert isinstance(llm.engine.runner, DeviceRunner)
    (backend,) = llm.engine.runner.model.context.backends
    assert isinstance(backend, Triton)
    assert backend.is_invariant
    assert any(isinstance(module, InvariantLinear) for module in llm.engine.runner.model.model.modules())


def test_on_a_cpu_nobody_promises_that_a_request_does_not_depend_on_others(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--deterministic needs --device cuda"):
        LLM(make_folder(tmp_path), settings=SETTINGS, budget=POOL, device="cpu", deterministic=True)


@pytest.mark.parametrize(("guesses", "places"), [(0, 2), (3, 8), (7, 16), (9, 16)])
def test_the_widest_scratch_step_is_as_wide_as_any(tmp_path: Path, guesses: int, places: int) -> None:
    from quire.worker.steps.boot import largest_steps

    settings = replace(SETTINGS, speculative_tokens=guesses)
    plan = prepared(make_folder(tmp_path), settings).plan
    _, step = largest_steps(plan, plan.stages[0])
    assert step.tokens == plan.batch_tokens
    assert len(step.rows) == plan.max_requests
    assert bool(step.samples.all())
    entries, wanted, _ = step.sample_places()
    assert len(entries) == len(set(wanted.tolist())) == places


def test_a_draft_model_guesses_there_and_answers_are_those_of_the_model_alone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, layers=1)
    both = on_gpu(folder, draft=folder, draft_tokens=2)
    assert isinstance(both.engine.runner, DeviceRunner)
    expected = on_cpu(folder).generate(["the fox", "a dog"], max_tokens=6)
    answers = both.generate(["the fox", "a dog"], max_tokens=6)
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    sums = both.engine.counters.sums
    assert sums[TokensDrafted, "accepted"] == sums[TokensDrafted, "drafted"] > 0


def test_decode_steps_that_are_not_recorded_are_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path)
    monkeypatch.setattr(device_runner, "why_not", lambda _model: "it is too dark")
    llm = on_gpu(folder)
    monkeypatch.setattr(quire.llm, "LLM", lambda *_given, **_named: llm)
    capsys.readouterr()
    _, said = run_text(capsys, "generate", "--prompt", "the fox", "--max-tokens", "1")
    assert said == "quire: decode steps are not recorded: it is too dark\n"
