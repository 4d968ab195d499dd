"""Random small systems: a model of any kinds, a plan with hardly more memory than one request needs, and its rules.

Everything follows from one random generator, so a seed names a system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from quire.check.definitions import DEFINITIONS, Sizes, Violation, most_sheets
from quire.core.memory import Follows, Memory, Part
from quire.core.rules import Policy, Rules
from quire.kinds import KINDS, Keeps
from quire.models.shape import Layer, ModelShape
from quire.plan import bound
from quire.plan.layout import GRANULE_BYTES
from quire.plan.make import make_plan
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Budget, Settings
from quire.prefix.lease_sizes import lease_sheets

ENOUGH = Budget(pool_bytes=1 << 30)
SPARE, SPARE_WITH_TIER = (0, 0, 1, 2, 3, 8), (0, 1, 3, 8, 20, 40, 80, 80)
"""Sheets beyond what one request needs. A load begins only where everyone can stay, which takes some."""
CROWDED_SHARE, CROWDED_SPARE = 0.15, 80
AWAY_SHARE = 0.4
"""Of systems with a tier: the pool has no lease memory, so all leases are in the tier."""
TIGHT_SHARE = 0.5
"""Of systems with windows or states: leases take all that one request leaves, and that is one or two of them."""
WIDE_SHARE = 0.06
"""Of systems: a unit is wider than sinks and window together, so that the units that they touch decide."""
STAGES = (2, 2, 3)
"""Of systems with several."""
LOAD_SECONDS = 6.0
"""One step takes one second of the checker's clock."""


@dataclass(frozen=True, slots=True)
class System:
    plan: Plan
    rules: Rules
    overlap: int
    spare: int
    """Sheets of each stage beyond what the longest request needs alone."""
    has_tier: bool
    typical_output: float
    """What admission expects at first: small numbers let many in, and lead to preemption."""
    is_large: bool = False
    is_crowded: bool = False
    """Fair shares of few rows, memory for all of them, and one tenant that comes first."""
    is_tight: bool = False
    """Leases take all that one request leaves: what is copied of them makes others wait, or leave."""
    is_away: bool = False
    """Leases are in the tier: what is loaded of them makes others wait, or leave."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({kind.kind.kind for stage in self.plan.stages for kind in stage.kinds}))

    @property
    def in_flight(self) -> int:
        """Steps in flight at most: as the engine is asked for, or one for each stage."""
        return max(self.overlap, self.plan.pipeline_parallel) if self.overlap > 1 else 1

    @property
    def has_groups(self) -> bool:
        return any(kind.groups > 1 for stage in self.plan.stages for kind in stage.kinds)


def random_system(random: Random, stages: Random) -> System:
    """`stages`: decides how many stages a system with several has."""
    kinds = random.sample(tuple(KINDS), random.choice((1, 2, 2, 3, 3, 4)))
    if "cross" in kinds and random.random() < 0.5:
        kinds.remove("cross")  # with it nothing is reused: half as often
        kinds = kinds or ["full"]
    is_crowded = random.random() < CROWDED_SHARE
    layers = random_layers(random, kinds, SMALL)
    length = random.randint(8, 48)
    model = ModelShape("checked", "check", tuple(layers), max_length=length, weights_known=False)
    settings = Settings(
        max_length=length,
        max_requests=random.choice((2, 3, 4, 6) if is_crowded else (1, 2, 3, 4, 6)),
        batch_tokens=random.choice((1, 2, 3, 5, 8, 16, 64)),
        page_tokens=random_page_tokens(random, kinds, SMALL),
        match_unit_tokens=random.choice((1, 2, 3, 4, 8)),
        reserved_pages=random.choice((0, 0, 0, 1, 2)),
        pipeline_parallel=random.choice((1, 1, min(stages.choice(STAGES), len(layers)))),
        speculative_tokens=random.choice((0, 0, 1, 2)),
    )
    has_tier = random.random() < 0.8
    spare = (
        CROWDED_SPARE if is_crowded else random.choice(SPARE_WITH_TIER if has_tier and "cross" not in kinds else SPARE)
    )
    plan = plan_with_spare(model, settings, spare)
    plan = in_groups(plan, spare) if random.random() < 0.25 else plan
    rules = random_rules(random, (2, 3, 64, 64))
    return System(
        plan,
        replace(rules, policy=Policy.FAIR) if is_crowded else rules,
        overlap=random.choice((1, 2, 2, 3)),
        spare=spare,
        has_tier=has_tier,
        typical_output=random.choice((1.0, 4.0, 128.0)),
        is_crowded=is_crowded,
    )


def with_wide_units(system: System, random: Random) -> System:
    """Another system now and then: sinks, alone or with another kind, and pages of half a unit."""
    if "sink" not in KINDS or system.is_large or system.is_crowded or random.random() >= WIDE_SHARE:
        return system
    kinds = ["sink", *random.choice(((), (), ("full",), ("window",)))]
    length, layers = random.randint(24, 48), random_layers(random, kinds, WIDE)
    settings = Settings(
        max_length=length,
        max_requests=random.choice((2, 3, 4)),
        batch_tokens=random.choice((3, 8, 64)),
        page_tokens={"": WIDE.pages[0]},
        match_unit_tokens=2 * WIDE.pages[0],
    )
    model = ModelShape("checked", "check", tuple(layers), max_length=length, weights_known=False)
    return replace(system, plan=plan_with_spare(model, settings, system.spare))


def plan_with_spare(model: ModelShape, settings: Settings, spare: int) -> Plan:
    """A plan with just the sheets that a lone request of the longest length needs, and some to spare."""
    assert settings.max_length is not None
    roomy = make_plan(model, settings, ENOUGH)
    needed = [_needed(roomy, stage, settings.max_length) for stage in roomy.stages]
    plan = make_plan(model, settings, Budget(sheets=tuple(sheets + spare for sheets in needed)))
    if not plan.fits:
        raise Violation(f"a pool of {needed} sheets is what the bound asks for, and is refused: {plan.problem}")
    if spare == 0 and min(needed) > 1:
        short = make_plan(model, settings, Budget(sheets=tuple(sheets - 1 for sheets in needed)))
        if short.fits:
            raise Violation(f"a pool of {needed} sheets is what the bound asks for, and one less each is accepted")
    return plan


def _needed(plan: Plan, stage: StagePlan, length: int) -> int:
    """Sheets for a lone request, from the bound; neither fewer nor more than a pass over every token takes."""
    sheets = bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages)
    taken = most_sheets(plan, stage, length)
    if sheets != taken:
        raise Violation(f"the bound asks for {sheets} sheets for {length} tokens, and {taken} are taken at most")
    return sheets


def in_groups(plan: Plan, spare: int) -> Plan:
    """The same with two tables where there was one: half as large pages, as planners cut odd mixes."""
    stages = []
    for stage in plan.stages:
        kinds = tuple(
            replace(k, groups=2 * k.groups, page_bytes=k.page_bytes // 2, pages_per_sheet=2 * k.pages_per_sheet)
            if k.page_bytes % (2 * GRANULE_BYTES) == 0
            else k
            for k in stage.kinds
        )
        cut = replace(stage, kinds=kinds)
        needed = _needed(plan, cut, plan.max_length)
        stages.append(replace(cut, sheets=needed + spare, lease_sheets=spare // 2))
    return replace(plan, stages=tuple(stages))


def with_lease_sheets(system: System, random: Random) -> System:
    """Leases may take nothing, half of what one request leaves, or all of it; not the same on each stage."""
    stages = tuple(
        replace(stage, lease_sheets=random.choice((0, system.spare // 2, system.spare, system.spare)))
        if stage.kinds
        else stage
        for stage in system.plan.stages
    )
    return replace(system, plan=replace(system.plan, stages=stages))


def with_tight_leases(system: System, random: Random) -> System:
    """Room for one or two leases next to a lone request, none for anything else; for some systems where a hit copies
    states or what is left of a page."""
    plan = system.plan
    has_copies = any(not kind.kind.grows for stage in plan.stages for kind in stage.kinds)
    is_chosen = random.random() < TIGHT_SHARE and not (system.is_large or system.is_crowded)
    if not is_chosen or not has_copies or plan.no_reuse_because:
        return system
    leases = lease_sheets(plan, random.randint(plan.max_length // 2, plan.max_length), random.choice((1, 1, 2)))
    stages = tuple(
        replace(stage, sheets=stage.sheets - system.spare + own, lease_sheets=own) if stage.kinds else stage
        for stage, own in zip(plan.stages, leases, strict=True)
    )
    tight = replace(plan, stages=stages)
    return replace(system, plan=tight, spare=max(leases), is_tight=True, typical_output=1.0)


def with_leases_away(system: System, random: Random) -> System:
    """No lease memory in the pool, for some systems with a tier."""
    is_other = system.is_large or system.is_crowded or system.is_tight or bool(system.plan.no_reuse_because)
    if is_other or not system.has_tier or random.random() >= AWAY_SHARE:
        return system
    stages = tuple(replace(stage, lease_sheets=0) for stage in system.plan.stages)
    return replace(system, plan=replace(system.plan, stages=stages), is_away=True)


SMALL = Sizes(window=12, chunk=12, sinks=4, pages=(1, 2, 3, 4))
"""Short requests leave every window behind."""
WIDE = Sizes(window=8, chunk=8, sinks=4, pages=(4,))


def random_layers(random: Random, kinds: Sequence[str], sizes: Sizes) -> list[Layer]:
    layers = []
    width = random.choice((64, 4096))
    for kind in kinds:
        numbers, heads = DEFINITIONS[kind].random(random, sizes), random.choice((1, 1, 2, 3, 4))
        parts = (Part("key", heads, width, follows=Follows.KV, replicated=True),)
        layers += [Layer((Memory.of(kind, parts, numbers),))] * random.randint(1, 4)
    random.shuffle(layers)
    return layers


def random_page_tokens(random: Random, kinds: Sequence[str], sizes: Sizes) -> Mapping[str, int]:
    """One size for all kinds, or one each; a page of latents holds whole states."""
    choices = [size for size in sizes.pages if size % 2 == 0] if "latent" in kinds else list(sizes.pages)
    if random.random() < 0.5:
        return {"": random.choice(choices)}
    return {kind: random.choice(choices) for kind in kinds if KINDS[kind].keeps is not Keeps.STATE}


def random_rules(random: Random, queue_bounds: tuple[int, ...]) -> Rules:
    return Rules(
        policy=random.choice(list(Policy)),
        queue_bound=random.choice(queue_bounds),
        load_seconds=LOAD_SECONDS,
    )
