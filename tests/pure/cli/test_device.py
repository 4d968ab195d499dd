"""Where a model runs: asked for, or found; what is missing is said with the way out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from quire import machine
from quire.core.errors import InputError
from quire.core.units import GIB
from quire.machine import Machine, chosen_device, machine_of

GPU = Machine("a GPU", 80 * GIB, 0.92, is_accelerator=True)


def test_a_machine_without_a_driver_runs_models_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_accelerator", lambda: None)
    assert chosen_device("auto") == "cpu"
    assert not machine_of("cpu").is_accelerator
    with pytest.raises(InputError, match="choose --device cpu"):
        machine_of("cuda")


def test_a_gpu_is_found_and_a_cpu_can_still_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_accelerator", lambda: GPU)
    assert chosen_device("auto", lambda: True) == "cuda"
    assert chosen_device("auto", lambda: False) == "cpu"
    assert chosen_device("cpu") == "cpu"
    assert machine_of("cuda") is GPU
    assert not machine_of("cpu").is_accelerator


def test_a_gpu_without_triton_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_accelerator", lambda: GPU)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"quire\[gpu\]"):
        chosen_device("auto", lambda: True)


def test_other_names_are_refused() -> None:
    with pytest.raises(InputError, match="auto, cpu, cuda"):
        chosen_device("tpu")


@pytest.mark.story
@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_a_container_may_still_take_is_its_limit_less_what_it_holds(
    names: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File contents that nobody uses any more give way."""
    limit, used, idle = names
    (tmp_path / limit).write_text("10000\n")
    (tmp_path / used).write_text("7000\n")
    (tmp_path / "memory.stat").write_text(f"anon 4000\n{idle} 2000\n")
    monkeypatch.setattr(machine, "CGROUP_LIMITS", (str(tmp_path / limit),))
    monkeypatch.setattr(machine, "CGROUP_USES", (used,))
    assert machine.available_bytes() == 10_000 - 7_000 + 2_000
    (tmp_path / used).write_text("99999\n")
    assert machine.available_bytes() == 0
    (tmp_path / limit).write_text("max\n")
    assert machine.available_bytes() > 10_000
