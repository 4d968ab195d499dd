"""What every rank must have in common with rank 0. Each states it before weights are read; a difference is refused."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

from quire.core.errors import InputError
from quire.core.version import __version__
from quire.plan.file import fingerprint
from quire.plan.plan import Plan
from quire.ranks.channel import Json

REMEDIES = {
    "plan": "start every rank with the same options",
    "weights": "give every rank the same checkpoint",
    "run": "start every rank with the same options",
}
INSTALL = "install the same version on every machine"


def facts_of(plan: Plan, weights: str, run: str) -> Json:
    """`weights`: identifies the checkpoint. `run`: options that change what is computed."""
    packages = {name: metadata.version(name) for name in ("torch", "transformers")}
    versions = {"quire": __version__, **packages, "python": platform.python_version()}
    return {"plan": fingerprint(plan), "weights": weights, "run": run, **versions}


def require_same(own: Json, others: Sequence[Json]) -> None:
    """`others`: of ranks 1, 2, …"""
    for rank, other in enumerate(others, 1):
        for name, value in own.items():
            if other.get(name) != value:
                remedy = REMEDIES.get(name, INSTALL)
                raise InputError(
                    f"rank {rank} has {name} {_short(other.get(name))}, rank 0 has {_short(value)}: {remedy}"
                )


def _short(value: object) -> str:
    """Of a digest its first digits."""
    text = str(value)
    return f"{text[:12]}…" if len(text) > 40 else text
