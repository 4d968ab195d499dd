"""What memory this machine has: its accelerator if a driver answers, else main memory within the container's limit."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quire.core.errors import InputError, MissingPackage
from quire.core.units import MIB
from quire.options.child import python
from quire.options.extras import how_to_install
from quire.options.run import DEVICES, RunOptions

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CGROUP_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
"""Limit and use, by controller: version 2 has none in its paths, version 1 a folder for each."""
TOLD_BY_TOOL = re.compile(r"\d+|GPU-[0-9a-f-]{36}")
"""Devices that nvidia-smi finds: by index, or by whole name."""
ASK_TORCH = "import torch; gpu = torch.cuda.get_device_properties(0); print(f'{gpu.name}, {gpu.total_memory >> 20}')"


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    memory_bytes: int
    memory_fraction: float
    is_accelerator: bool


def this_machine() -> Machine:
    return _accelerator() or _main_memory()


def machine_of(device: str) -> Machine:
    """Where `cpu` or `cuda` keeps a model."""
    if device == "cpu":
        return _main_memory()
    found = _accelerator()
    if found is None:
        raise InputError("no accelerator answers here (see nvidia-smi and CUDA_VISIBLE_DEVICES): choose --device cpu")
    return found


def of_each_rank(machine: Machine, ranks: int) -> Machine:
    """What each of several ranks has: a device of its own, or its part of main memory."""
    if machine.is_accelerator or ranks == 1:
        return machine
    return replace(machine, memory_bytes=machine.memory_bytes // ranks)


def torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def torch_elsewhere_has_cuda() -> bool:
    """Asks torch in a separate process, because this one must not load torch."""
    question = "from quire.build.machine import torch_has_cuda; raise SystemExit(not torch_has_cuda())"
    return subprocess.run(python("-c", question), check=False).returncode == 0


def chosen_device(asked: str, has_cuda: Callable[[], bool] = torch_has_cuda) -> str:
    """`auto`: cuda if a driver answers and torch can use it, else cpu."""
    if asked not in DEVICES:
        raise InputError(f"device {asked!r} is not known: choose one of {', '.join(DEVICES)}")
    if asked == "cpu" or (asked == "auto" and (_accelerator() is None or not has_cuda())):
        return "cpu"
    if importlib.util.find_spec("triton") is None:
        raise MissingPackage(f"a GPU needs Triton: {how_to_install('gpu')}, or choose --device cpu")
    return "cuda"


def resolve_device(options: RunOptions, has_cuda: Callable[[], bool] = torch_has_cuda) -> RunOptions:
    """The options for the device that runs the model. Raises if they ask for what it cannot do."""
    return replace(options, device=chosen_device(options.device, has_cuda))


def let_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """torch's CPU threads wait for each other asleep, not spinning, unless the environment says otherwise. OpenMP's
    library reads this once, when torch loads it: call it before."""
    environment.setdefault("OMP_WAIT_POLICY", "passive")


def _accelerator() -> Machine | None:
    """The first NVIDIA device that CUDA shows, according to nvidia-smi: without a CUDA context or torch. nvidia-smi
    knows no abbreviated names, nor the memory of a part of a device: for these a separate process asks torch."""
    tool, first = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if tool is None or first in ("", "-1"):
        return None
    query, seconds = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits", f"--id={first}"], 5
    if not TOLD_BY_TOOL.fullmatch(first):
        query, seconds = python("-c", ASK_TORCH), 60
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=seconds, check=True).stdout
        name, mebibytes = answer.strip().splitlines()[0].rsplit(",", 1)
        return Machine(f"this machine's {name.strip()}", int(mebibytes) * MIB, 0.92, True)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _main_memory() -> Machine:
    """Half of what is available now: other programs need memory too."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise InputError("cannot tell how much memory this machine has: give --memory, --device or --pool") from None
    limits = (_number(folder / limit) for folder, limit, _ in _cgroups())
    available = min([physical, *filter(None, (_available(), *limits))])
    return Machine("this machine's main memory (no accelerator found)", available, 0.5, False)


def available_bytes() -> int:
    """Main memory that could be taken now, within the container's limit; unlimited if the system does not report it."""
    rooms = (_room(*group) for group in _cgroups())
    return min([1 << 62, *(bound for bound in (_available(), *rooms) if bound is not None)])


def _cgroups() -> list[tuple[Path, str, str]]:
    """Folders of the control groups this process is in, its own first, with their files: each of them may have a limit.
    In a container the visible root is its own; in a service the limit is at the service's path."""
    paths = dict.fromkeys(CGROUP_FILES, "/")
    with contextlib.suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths |= {name: path for name in controllers.split(",") if name in paths}
    found = []
    for name, path in paths.items():
        own = PurePosixPath("" if ".." in path.split("/") else path.lstrip("/"))  # outside of what is visible here
        found += [(CGROUPS / name / group, *CGROUP_FILES[name]) for group in (own, *own.parents)]
    return found


def _room(folder: Path, limit_file: str, used_file: str) -> int | None:
    """Bytes that a group's limit leaves; cached file contents that are not in use count as free."""
    limit, taken = _number(folder / limit_file), _number(folder / used_file)
    if limit is None or taken is None:
        return limit
    try:
        lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        lines = {}
    return max(0, limit - taken + int(lines.get("total_inactive_file", lines.get("inactive_file", 0))))


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
