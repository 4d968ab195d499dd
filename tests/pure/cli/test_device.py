"""Where a model runs: asked for, or found; what is missing is said with the way out."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from quire.build import machine
from quire.build.machine import Machine, chosen_device, let_threads_sleep, machine_of
from quire.core.errors import InputError
from quire.core.units import GIB, MIB

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
    with pytest.raises(InputError, match=r"pip install '\.\[gpu\]'"):
        chosen_device("auto", lambda: True)


@pytest.mark.story
@pytest.mark.parametrize(
    ("visible", "asked"),
    [
        (None, "--id=0"),
        ("3", "--id=3"),
        ("2,0", "--id=2"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "--id=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
        ("GPU-8932f937", machine.ASK_TORCH),
        ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", machine.ASK_TORCH),
        ("", None),
        ("-1", None),
        ("-1,0", None),
    ],
)
def test_the_first_gpu_that_torch_may_see_is_asked(
    visible: str | None, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi knows nothing of the variable, nor of names cut short, nor how much memory a part of a GPU has."""
    commands: list[list[str]] = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "A GPU, 81559\n")

    monkeypatch.setattr(shutil, "which", lambda _name: "nvidia-smi")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = machine._accelerator()
    assert [command[-1] for command in commands] == ([] if asked is None else [asked])
    assert found == (None if asked is None else Machine("this machine's A GPU", 81559 * MIB, 0.92, is_accelerator=True))


def test_other_names_are_refused() -> None:
    with pytest.raises(InputError, match="auto, cpu, cuda"):
        chosen_device("tpu")


VERSION_2 = ("", "memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.story
@pytest.mark.parametrize(("names", "line"), [(VERSION_2, "0::"), (VERSION_1, "9:cpu:/other\n4:hugetlb,memory:")])
@pytest.mark.parametrize(
    ("path", "least"),
    [
        ("/system.slice/quire.service", 3_000),
        ("/system.slice/quire.service/workers", 3_000),
        ("/system.slice", 5_000),
        ("/another.slice", 9_000),
        ("/../system.slice/quire.service", 9_000),
        ("/", 9_000),
    ],
)
def test_the_least_limit_from_a_process_s_own_group_to_the_root_counts(
    names: tuple[str, str, str, str], line: str, path: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has its limit at its own path, where no container hides what lies around it."""
    root, limit, used, _ = names
    for group, bound in {"": 9_000, "system.slice": 5_000, "system.slice/quire.service": 4_000}.items():
        (tmp_path / root / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / root / group / limit).write_text(f"{bound}\n")
        (tmp_path / root / group / used).write_text("1000\n" if "quire" in group else "0\n")
    (tmp_path / "own").write_text(f"{line}{path}\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    assert machine.available_bytes() == least
    assert machine.machine_of("cpu").memory_bytes == (4_000 if least == 3_000 else least)


@pytest.mark.story
@pytest.mark.parametrize("names", [VERSION_2, VERSION_1])
def test_what_a_container_may_still_take_is_its_limit_less_what_it_holds(
    names: tuple[str, str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File contents that nobody uses any more give way."""
    root, limit, used, idle = names
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    tmp_path /= root
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("10000\n")
    (tmp_path / used).write_text("7000\n")
    (tmp_path / "memory.stat").write_text(f"anon 4000\n{idle} 2000\n")
    assert machine.available_bytes() == 10_000 - 7_000 + 2_000
    (tmp_path / used).write_text("99999\n")
    assert machine.available_bytes() == 0
    (tmp_path / limit).write_text("max\n")
    assert machine.available_bytes() > 10_000


def test_threads_sleep_unless_the_environment_says_otherwise() -> None:
    chosen: dict[str, str] = {}
    own = {"OMP_WAIT_POLICY": "active"}
    for environment in (chosen, own):
        let_threads_sleep(environment)
    assert (chosen, own) == ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "active"})
