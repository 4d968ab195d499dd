"""Quire: a key-value memory for language models that cannot hang, wastes almost nothing and explains itself."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire.core.extras import naming_extras
from quire.core.version import __version__

if TYPE_CHECKING:
    from quire.build.tiers import Tiers
    from quire.core.sampling import Sampling
    from quire.llm import LLM, Completion
    from quire.plan.settings import Budget, Settings

__all__ = ["LLM", "Budget", "Completion", "Sampling", "Settings", "Tiers", "__version__"]
_MODULES = {
    "LLM": "quire.llm",
    "Budget": "quire.plan.settings",
    "Completion": "quire.llm",
    "Sampling": "quire.core.sampling",
    "Settings": "quire.plan.settings",
    "Tiers": "quire.build.tiers",
}
"""Imported when they are asked for: `LLM` and `Completion` need torch, planning does not."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    with naming_extras(name):
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
