"""Quire: a key-value memory for language models that cannot hang, wastes almost nothing and explains itself."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire.core.version import __version__
from quire.options.extras import naming_extras

if TYPE_CHECKING:
    from quire.core.sampling import Sampling
    from quire.explain.leases import LeaseReport
    from quire.llm import LLM, Completion, Delta, ToolCall
    from quire.options.run import RunOptions
    from quire.options.tiers import Tiers
    from quire.plan.settings import Budget, Settings

__all__ = [
    "LLM",
    "Budget",
    "Completion",
    "Delta",
    "LeaseReport",
    "RunOptions",
    "Sampling",
    "Settings",
    "Tiers",
    "ToolCall",
    "__version__",
]
_MODULES = {
    "LLM": "quire.llm",
    "Budget": "quire.plan.settings",
    "Completion": "quire.llm",
    "Delta": "quire.llm",
    "LeaseReport": "quire.explain.leases",
    "RunOptions": "quire.options.run",
    "Sampling": "quire.core.sampling",
    "Settings": "quire.plan.settings",
    "Tiers": "quire.options.tiers",
    "ToolCall": "quire.llm",
}
"""Imported when they are used: what is in `quire.llm` needs torch, planning does not."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    with naming_extras(name):
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
