"""Where a model runs: asked for, or found; what is missing is said with the way out."""

from __future__ import annotations

import importlib.util

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
