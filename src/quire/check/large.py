"""Random large systems, now and then: dozens of rows, prompts of hundreds of tokens, long outputs, many sheets.

They reach what small ones never do: rows that are written and cut together, arrays that are widened, heaps that are
built anew, lines of which a step sees the beginning only.
"""

from __future__ import annotations

from random import Random

from quire.check.definitions import Sizes
from quire.check.requests import TURN_RATES, Traffic
from quire.check.systems import (
    ENOUGH,
    STAGES,
    System,
    in_groups,
    plan_with_spare,
    random_layers,
    random_page_tokens,
    random_rules,
)
from quire.kinds import KINDS
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Settings

EVERY = 32
"""One episode of so many is large."""
SIZES = Sizes(window=80, chunk=80, sinks=10, pages=(4, 8, 16))
OF_REUSE = tuple(kind for kind in KINDS if KINDS[kind].is_shareable)
MOST_OUTPUTS = 150
"""More than a row has room for at first."""
SHORT_PROMPT = 12
ROWS = (24, 32, 48, 64)
CROWD = 64
"""With so many rows everyone comes at once, and there is room for nearly all of them."""
CROWD_SHEETS = 2000


def is_large(seed: int) -> bool:
    return seed % EVERY == EVERY - 1


def large_system(random: Random, turn: int, stages: Random) -> System:
    """`turn`: kinds and rows take turns, so that a few large systems have all of them; `stages`: as for small ones."""
    first = OF_REUSE[turn % len(OF_REUSE)]
    kinds = [first, *random.sample([kind for kind in OF_REUSE if kind != first], random.choice((0, 1, 1, 2)))]
    kinds += ["cross"] * (first == OF_REUSE[-1])
    layers, length = random_layers(random, kinds, SIZES), random.choice((160, 320, 640, 1280))
    model = ModelShape("checked", "check", tuple(layers), max_length=length, weights_known=False)
    rows = ROWS[turn % len(ROWS)]
    settings = Settings(
        max_length=length,
        max_requests=rows,
        batch_tokens=random.choice((64, 128, 512, 2048) if rows < CROWD else (2048,)),
        page_tokens=random_page_tokens(random, kinds, SIZES),
        match_unit_tokens=random.choice((4, 8, 16, 32) if rows < CROWD else (32,)),
        reserved_pages=random.choice((0, 0, 1)),
        pipeline_parallel=random.choice((1, 1, min(stages.choice(STAGES), len(layers)))),
        speculative_tokens=random.choice((0, 0, 1, 2)),
    )
    alone = _alone(model, settings)
    spare = alone * (random.choice((4, 8, 16)) if rows < CROWD else max(16, min(CROWD, CROWD_SHEETS // alone)))
    plan = plan_with_spare(model, settings, spare)
    return System(
        in_groups(plan, spare) if random.random() < 0.25 else plan,
        random_rules(random, (16, 64, 256) if rows < CROWD else (256,)),
        overlap=random.choice((1, 2, 2, 3)),
        spare=spare,
        has_tier=random.random() < 0.8,
        typical_output=random.choice((4.0, 32.0, 128.0) if rows < CROWD else (4.0,)),
        is_large=True,
    )


def _alone(model: ModelShape, settings: Settings) -> int:
    """Sheets that a lone request of the longest length needs."""
    roomy = make_plan(model, settings, ENOUGH)
    ahead, reserved = roomy.lookahead, roomy.reserved_pages
    return max(bound.minimum(stage.kinds, roomy.max_length, ahead, reserved) for stage in roomy.stages)


def large_traffic(random: Random, plan: Plan) -> Traffic:
    """A crowd comes at once, with prompts too short to be shared: more than one step takes."""
    requests, turn_rate = round(plan.max_requests * random.choice((1.2, 1.6, 2.0))), random.choice(TURN_RATES)
    if plan.max_requests == CROWD:
        return Traffic(requests, 0, 1024, SHORT_PROMPT, MOST_OUTPUTS, turn_rate)
    return Traffic(requests, random.choice((0, 1)), 1024, plan.max_length, MOST_OUTPUTS, turn_rate)
