"""How a draft model changes what is planned."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import PlanError
from quire.plan.settings import Settings

DRAFT_TOKENS = 4
"""The default for a draft model."""


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
