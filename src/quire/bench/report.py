"""What a bench found: tables, and on what they were measured. As Markdown or as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from quire import __version__

Table = list[dict[str, object]]
"""Lines with the same columns."""
Tell = Callable[[str], None]
"""Is told how far a bench is."""
PACKAGES = ("torch", "triton", "transformers", "flashinfer-python")


@dataclass(frozen=True, slots=True)
class Report:
    about: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)

    def text(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n\n".join([about, *(f"{name}\n\n{markdown(table)}" for name, table in self.tables.items() if table)])

    def json(self) -> str:
        return json.dumps({"about": self.about, "tables": self.tables}, indent=1, ensure_ascii=False)


def markdown(table: Table) -> str:
    head = list(table[0])
    lines = [head, ["---"] * len(head), *([str(line.get(name, "")) for name in head] for line in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def about(device: str, **more: Any) -> dict[str, Any]:
    """The device by its own name, and the versions of what computes there."""
    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    return {"device": name, "quire": __version__, **versions(), **more}


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def processor() -> str:
    """As the system calls it, and how many threads torch has there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({torch.get_num_threads()} threads)"
