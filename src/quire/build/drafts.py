"""Which drafter an engine gets."""

from __future__ import annotations

from quire.core.drafting import Drafter
from quire.models.shape import ModelShape
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.simulate.cost import cost_model
from quire.simulate.devices import DATASHEETS, speed_of
from quire.text.ngrams import NGramDrafter
from quire.text.suffixes import SuffixDrafter
from quire.worker.steps.drafting import DeferredDrafter


def make_drafter(plan: Plan, options: RunOptions, most_step_tokens: int | None = None) -> Drafter | None:
    """None without a lookahead. `most_step_tokens`: of steps with drafts, where it is known."""
    if not plan.lookahead:
        return None
    if options.draft_model is not None:
        return DeferredDrafter()
    if options.draft == "suffix":
        return SuffixDrafter(plan.max_requests, options.draft_memory, most_step_tokens)
    return NGramDrafter()


def memory_bound_tokens(plan: Plan, shape: ModelShape, device: str) -> int | None:
    """Tokens up to which a step takes about as long as one with a single token, by the cost model of `quire simulate`;
    None: nobody knows how fast the device is."""
    name = device.lower().replace(" ", "-")
    known = sorted((one for one in DATASHEETS if one in name), key=len)
    return cost_model(plan, shape, speed_of(known[-1], None, None)).memory_bound_tokens() if known else None
