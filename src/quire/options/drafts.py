"""How a draft model changes what is planned."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import PlanError
from quire.core.units import MIB
from quire.plan.settings import Settings

DRAFT_TOKENS = 4
"""The default for a draft model."""
DRAFTS = ("ngram", "suffix")
DRAFT_MEMORY_BYTES = 64 * MIB


def with_draft(settings: Settings, draft_model: object | None, draft_tokens: int | None) -> Settings:
    """Plans as many tokens ahead as the draft model drafts, if there is one."""
    if draft_model is None:
        if draft_tokens is not None:
            raise PlanError(f"--draft-tokens {draft_tokens} needs a draft model: give --draft-model as well")
        return settings
    draft_tokens = DRAFT_TOKENS if draft_tokens is None else draft_tokens
    if draft_tokens < 1:
        raise PlanError(
            f"--draft-tokens {draft_tokens} leaves a draft model nothing to do: give at least 1, or leave it out"
        )
    if settings.speculative_tokens not in (0, draft_tokens):
        raise PlanError(
            f"--speculative-tokens {settings.speculative_tokens} and --draft-tokens {draft_tokens} differ: a draft "
            "model guesses as many as --draft-tokens says, so leave the other out"
        )
    return replace(settings, speculative_tokens=draft_tokens)


def with_draft_memory(settings: Settings, draft_model: object | None, draft: str, memory_bytes: int) -> Settings:
    """Plans memory for earlier tokens, if drafts are looked up in them."""
    if draft != "suffix":
        return settings
    if draft_model is not None:
        raise PlanError("--draft suffix and --draft-model both say where drafts come from: leave one of them out")
    if not settings.speculative_tokens:
        raise PlanError("--draft suffix has no drafts to find: give --speculative-tokens too, for example 8")
    return replace(settings, draft_bytes=memory_bytes)
