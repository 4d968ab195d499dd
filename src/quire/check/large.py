"""Random large systems, now and then: dozens of rows, prompts of hundreds of tokens, long outputs, many sheets.

They reach what small ones never do: rows that are written and cut together, arrays that are widened, heaps that are
built anew, lines of which a step sees the beginning only.
"""

from __future__ import annotations

from random import Random

from quire.check.requests import TURN_RATES, Traffic
from quire.check.systems import (
    ENOUGH,
    Sizes,
    System,
    in_groups,
    plan_with_spare,
    random_layers,
    random_page_tokens,
    random_rules,
)
from quire.kinds import KIND_NAMES
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Settings

EVERY = 32
"""One episode of so many is large."""
SIZES = Sizes(window=80, chunk=80, sinks=10, pages=(4, 8, 16))
OF_REUSE = tuple(kind for kind in KIND_NAMES if kind != "cross")
MOST_OUTPUTS = 150
"""More than a row has room for at first."""


def is_large(seed: int) -> bool:
    return seed % EVERY == EVERY - 1


def large_system(random: Random, turn: int) -> System:
    """`turn`: kinds take turns, so that a few large systems have all of them."""
    first = OF_REUSE[turn % len(OF_REUSE)]
    kinds = [first, *random.sample([kind for kind in OF_REUSE if kind != first], random.choice((0, 1, 1, 2)))]
    kinds += ["cross"] * (first == OF_REUSE[-1])
    layers, length = random_layers(random, kinds, SIZES), random.choice((160, 320, 640, 1280))
    model = ModelShape("checked", "check", tuple(layers), max_length=length, weights_known=False)
    settings = Settings(
        max_length=length,
        max_requests=random.choice((24, 32, 48, 64)),
        batch_tokens=random.choice((64, 128, 512, 2048)),
        page_tokens=random_page_tokens(random, kinds, SIZES),
        match_unit_tokens=random.choice((4, 8, 16, 32)),
        reserved_pages=random.choice((0, 0, 1)),
        pipeline_parallel=random.choice((1, 1, min(2, len(layers)))),
        speculative_tokens=random.choice((0, 0, 1, 2)),
    )
    roomy = make_plan(model, settings, ENOUGH)
    alone = max(bound.minimum(stage.kinds, length, roomy.lookahead, roomy.reserved_pages) for stage in roomy.stages)
    spare = alone * random.choice((4, 8, 16))
    plan = plan_with_spare(model, settings, spare)
    return System(
        in_groups(plan, spare) if random.random() < 0.25 else plan,
        random_rules(random, (16, 64, 256)),
        overlap=random.choice((1, 2, 2, 3)),
        spare=spare,
        has_tier=random.random() < 0.8,
        typical_output=random.choice((4.0, 32.0, 128.0)),
        is_large=True,
    )


def large_traffic(random: Random, plan: Plan) -> Traffic:
    requests = round(plan.max_requests * random.choice((1.2, 1.6, 2.0)))
    return Traffic(requests, random.choice((0, 1)), 1024, MOST_OUTPUTS, random.choice(TURN_RATES))
