"""A checkpoint starts as on a GPU, on a CPU under Triton's interpreter: memory is the only thing that is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import assemble
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.worker import meter
from quire.worker.device_runner import DeviceRunner
from quire.worker.meter import Meter
from tiny_folder import make_folder

SETTINGS = Settings(max_length=64, max_requests=2, batch_tokens=16)
POOL = Budget(pool_bytes=4 << 20)
STEP_BYTES = 1 << 20


class MadeUp(Meter):
    total_bytes = 1 << 30

    def free(self) -> int:
        return self.total_bytes - sum(size for name, size in self._lines.items() if name != "activations")

    def allocated(self) -> int:
        return 3 << 20

    def start_peak(self) -> None:
        pass

    def peak(self) -> int:
        return self.allocated() + STEP_BYTES

    def taken(self) -> int:
        return self.total_bytes - self.free()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` is the CPU."""
    monkeypatch.setattr(meter, "Meter", MadeUp)
    start = assemble._on_gpu
    monkeypatch.setattr(assemble, "_on_gpu", lambda *given, compiled: start(*given, compiled, "cpu"))
    main_memory = assemble.machine_of("cpu")
    monkeypatch.setattr(assemble, "machine_of", lambda _device: main_memory)
    monkeypatch.setattr(assemble, "available_bytes", lambda: 1 << 40)


def started(folder: Path, device: str) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL, dtype=DType.FP32, device=device)


@pytest.mark.usefixtures("on_gpu")
def test_it_yields_what_a_cpu_yields_and_its_ledger_is_measured(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    llm = started(folder, "cuda")
    assert isinstance(llm.engine.runner, DeviceRunner)
    expected = started(folder, "cpu").generate("the fox", max_tokens=3)
    assert llm.generate("the fox", max_tokens=3) == expected
    measured = {line.name: line.measured_bytes for line in llm.parts.measured}
    stage = llm.plan.stages[0]
    assert measured["pool"] == stage.pool_bytes + stage.sheet_bytes
    assert measured["activations"] == STEP_BYTES
    assert [line.name for line in llm.parts.measured][:2] == ["weights", "activations"]


@pytest.mark.usefixtures("on_gpu")
def test_a_pool_that_leaves_no_room_for_what_was_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MadeUp, "total_bytes", 519 << 20)  # 3 of weights, 1 of a step, 512 of graphs, 4 of the pool
    with pytest.raises(DoesNotFit, match=r"lower the pool to 2\.\d+ MiB"):
        started(make_folder(tmp_path), "cuda")


def test_the_scratch_step_is_as_large_as_any(tmp_path: Path) -> None:
    from quire.worker.boot import largest_step

    plan = assemble.plan_folder(make_folder(tmp_path), SETTINGS, POOL, DType.FP32)
    step = largest_step(plan, plan.stages[0])
    assert step.tokens == plan.batch_tokens
    assert len(step.rows) == plan.max_requests
    assert bool(step.samples.all())
