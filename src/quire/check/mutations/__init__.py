"""Known bugs, planted on purpose: a checker that does not find them is not worth running."""

from __future__ import annotations

from contextlib import AbstractContextManager

from quire.check.mutations.base import Mutation, replaced
from quire.check.mutations.forks import FORKS
from quire.check.mutations.leaks import LEAKS
from quire.check.mutations.leases import LEASES
from quire.check.mutations.loads import LOADS
from quire.check.mutations.pages import PAGES
from quire.check.mutations.policy import POLICY
from quire.check.mutations.reuse import REUSE
from quire.check.mutations.scale import SCALE
from quire.check.mutations.stages import STAGES
from quire.check.mutations.steps import STEPS
from quire.check.mutations.tier_leases import TIER_LEASES
from quire.check.mutations.tiers import TIERS
from quire.check.mutations.warm import WARM

__all__ = ["MUTATIONS", "Mutation", "planted"]

MUTATIONS: dict[str, Mutation] = {
    **PAGES,
    **STEPS,
    **REUSE,
    **LOADS,
    **SCALE,
    **LEAKS,
    **POLICY,
    **TIERS,
    **LEASES,
    **FORKS,
    **TIER_LEASES,
    **WARM,
    **STAGES,
}


def planted(name: str) -> AbstractContextManager[None]:
    """The bug is there inside, and gone afterwards."""
    mutation = MUTATIONS[name]
    return replaced(mutation.owner, mutation.name, mutation.make)
