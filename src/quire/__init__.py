"""Quire: a key-value memory for language models that cannot hang, wastes almost nothing and explains itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.core.extras import naming_extras
from quire.core.version import __version__

if TYPE_CHECKING:
    from quire.core.sampling import Sampling
    from quire.llm import LLM
    from quire.plan.settings import Budget, Settings
    from quire.talk import Completion
    from quire.tiered import Tiers

__all__ = ["LLM", "Budget", "Completion", "Sampling", "Settings", "Tiers", "__version__"]


def __getattr__(name: str) -> Any:
    """`from quire import LLM` needs torch; everything else does not, so it comes when it is asked for."""
    if name == "LLM":
        with naming_extras(name):
            from quire.llm import LLM

        return LLM
    if name == "Completion":
        with naming_extras(name):
            from quire.talk import Completion

        return Completion
    if name == "Sampling":
        from quire.core.sampling import Sampling

        return Sampling
    if name in ("Budget", "Settings"):
        from quire.plan import settings

        return getattr(settings, name)
    if name == "Tiers":
        from quire.tiered import Tiers

        return Tiers
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
