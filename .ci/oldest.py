"""Constraints that pick the oldest versions which pyproject.toml allows of what a user installs. torch and triton stay
those that the tests run with: older builds may bring CUDA along."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("torch", "serve", "tiers", "plot")


def oldest() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    bounds = [one.replace(">=", "==") for one in wanted if ">=" in one and not one.startswith("torch>=")]
    return [*sorted(bounds), *(ROOT / "constraints.txt").read_text().splitlines()]


if __name__ == "__main__":
    print("\n".join(oldest()))
