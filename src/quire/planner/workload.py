"""From a description of traffic to how many users a plan serves at once.

Lengths are taken as log-normal through the given median and 95th percentile. A request is counted half-way through its
output, an idle session with all of it. A prefix that all requests share is kept once, by the kinds that keep whole
prefixes; the others keep their own.

With `ttl` the sessions are agents, which lease what they have computed: for the pauses between their turns (log-normal
too), at most for `ttl`, and while a turn runs. The leases must fit in the plan's lease memory, and the running requests
next to them. An agent whose pause is longer than `ttl` holds no lease for the rest of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from quire.core.errors import InputError
from quire.core.search import greatest
from quire.kinds import Counts, counts
from quire.options.texts import parse_tokens
from quire.plan import bound
from quire.plan.plan import Plan, StagePlan
from quire.prefix.lease_sizes import lease_pages

QUANTILES = 1000
EXAMPLE = "prompt=1200/6000,output=250/900,shared=800,sessions=4"
AGENTS = "sessions=40,pause=1s/10s,ttl=5m"
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Workload:
    prompt_p50: int
    prompt_p95: int
    output_p50: int
    output_p95: int
    shared_prefix: int = 0
    idle_sessions: int = 0
    """Sessions kept warm in the cache for each one that is being computed."""
    pause_seconds: tuple[float, float] | None = None
    """Between two turns of a session: median and 95th percentile."""
    lease_seconds: float | None = None
    """None: idle sessions are in the cache, without leases."""


@dataclass(frozen=True, slots=True)
class Served:
    active: int
    """Requests computed at once: those that fit, but no more than the plan's `max_requests`."""
    fitting: int
    """Requests that the pool holds, each with its idle sessions."""
    users: int
    """Active requests, and warm sessions between turns."""
    mean_length: int
    too_long: float
    """Fraction of requests that are longer than the plan admits: they are refused."""
    leased: int | None = None
    """With leases: sessions that have one at a time, those that are being computed included."""
    expired: float = 0.0
    """With leases: fraction of pauses that are longer than the lease, after which a turn may begin cold."""


def parse_workload(text: str) -> Workload:
    """`prompt=p50/p95,output=p50/p95[,shared=N][,sessions=N][,pause=p50/p95][,ttl=TIME]`."""
    items = [item.partition("=") for item in text.replace(" ", ",").split(",") if item]
    fields = {name: value for name, _, value in items}
    if len(fields) < len(items):
        raise InputError(f"--workload {text!r} says something twice: write it like {EXAMPLE}")
    unknown = sorted(set(fields) - {"prompt", "output", "shared", "sessions", "pause", "ttl"})
    if unknown or not {"prompt", "output"} <= set(fields):
        raise InputError(f"--workload {text!r} is not understood: write it like {EXAMPLE}")
    prompt, output = _percentiles(fields["prompt"]), _percentiles(fields["output"])
    shared = parse_tokens(fields["shared"]) if fields.get("shared", "0") != "0" else 0
    sessions = fields.get("sessions", "0")
    if not (sessions.isascii() and sessions.isdecimal() and len(sessions) < 7):
        raise InputError(f"sessions={sessions!r} is not a number of idle sessions per active one: write sessions=4")
    if shared > prompt[0]:
        raise InputError(f"shared={shared} is more than half of the prompts hold: lower it to at most {prompt[0]}")
    return Workload(*prompt, *output, shared, int(sessions), *_leases(fields))


def _leases(fields: dict[str, str]) -> tuple[tuple[float, float] | None, float | None]:
    """The pauses of agents and how long their leases last."""
    if "ttl" not in fields:
        if "pause" in fields:
            raise InputError(f"pause={fields['pause']} needs a ttl, how long leases last: write it like {AGENTS}")
        return None, None
    if fields.get("sessions", "0") == "0":
        raise InputError(f"ttl={fields['ttl']} needs sessions, the agents per active one: write it like {AGENTS}")
    pauses = [parse_seconds(part) for part in fields["pause"].split("/")] if "pause" in fields else None
    if pauses is not None and not (len(pauses) <= 2 and 0 < pauses[0] <= pauses[-1]):
        raise InputError(f"pause={fields['pause']!r} is not p50/p95: write it like {AGENTS}")
    return None if pauses is None else (pauses[0], pauses[-1]), parse_seconds(fields["ttl"])


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m` or `1h`."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "s")
    digits = number.replace(".", "", 1)
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10 and float(number)):
        raise InputError(f"{text!r} is not a time: write it like 90s, 5m or 1h")
    return float(number) * SECONDS[unit]


def _percentiles(text: str) -> tuple[int, int]:
    parts = [parse_tokens(part) for part in text.split("/")]
    median, high = (parts[0], parts[-1]) if len(parts) <= 2 else (0, 0)
    if not 1 <= median <= high:
        raise InputError(f"{text!r} is not p50/p95: write the median, then the 95th percentile, like 1200/6000")
    return median, high


def _quantiles(median: float, high: float) -> npt.NDArray[np.float64]:
    """Equally likely values of a log-normal."""
    sigma = math.log(high / median) / NormalDist().inv_cdf(0.95)
    normal = NormalDist(math.log(median), sigma) if sigma else None
    points = [(i + 0.5) / QUANTILES for i in range(QUANTILES)]
    return np.array([math.exp(normal.inv_cdf(p)) if normal else median for p in points])


def _lengths(median: int, high: int) -> Counts:
    return counts(np.round(_quantiles(median, high)).astype(np.int64))


def serve(plan: Plan, workload: Workload) -> Served:
    """Prompts and outputs are drawn independently, so every quantile of one meets a shuffled quantile of the other."""
    order = np.random.default_rng(0).permutation(QUANTILES)
    prompt = _lengths(workload.prompt_p50, workload.prompt_p95)
    output = _lengths(workload.output_p50, workload.output_p95)[order]
    admitted = prompt + output <= plan.max_length
    if not admitted.any():
        return Served(0, 0, 0, int((prompt + output).mean()), 1.0)
    whole = counts((prompt + output)[admitted])
    half = counts((prompt + (output + 1) // 2)[admitted])
    if workload.lease_seconds is not None:
        return _agents(plan, workload, half, whole, float(1 - admitted.mean()))
    fitting = min(_fitting(stage, plan, workload, half, whole) for stage in plan.stages if stage.kinds)
    active = min(fitting, plan.max_requests)
    users = active * (1 + workload.idle_sessions)
    return Served(active, fitting, users, int(half.mean()), float(1 - admitted.mean()))


def _fitting(stage: StagePlan, plan: Plan, workload: Workload, active: Counts, whole: Counts) -> int:
    """Mean pages of an active request and its idle sessions, in whole sheets, in addition to the shared prefix."""
    shared = workload.shared_prefix // plan.match_unit_tokens * plan.match_unit_tokens
    ahead = counts(np.minimum(plan.lookahead, active - 1))
    running = bound.demand(stage.kinds, active - 1 - ahead, counts(1), ahead, active)
    idle = bound.demand(stage.kinds, whole - 1, counts(1), counts(0), whole)
    own, once = [], []
    for kind, busy, warm in zip(stage.kinds, running, idle, strict=True):
        prefix = kind.groups * (shared // kind.page_tokens) if kind.kind.grows else 0
        sessions = workload.idle_sessions * np.maximum(0, warm - prefix).mean()
        own.append(float(np.maximum(0, busy - prefix).mean() + sessions))
        once.append(prefix)

    def fits(requests: int) -> bool:
        pages = [counts(math.ceil(requests * mean) + prefix) for mean, prefix in zip(own, once, strict=True)]
        return int(bound.sheets_needed(stage.kinds, pages, plan.reserved_pages)) <= stage.sheets

    most = (stage.sheets * kind.pages_per_sheet / max(mean, 1e-9) for kind, mean in zip(stage.kinds, own, strict=True))
    return greatest(0, int(max(most)), fits)


def _agents(plan: Plan, workload: Workload, active: Counts, whole: Counts, too_long: float) -> Served:
    """The most agents whose leases fit in lease memory, while one of every `sessions` + 1 is being computed."""
    each, share = workload.idle_sessions + 1, _leased_share(workload)
    leases = [lease_pages(plan, length) for length in whole.tolist()]
    means = [
        _means(stage, plan, workload, active, np.array([one[number] for one in leases], dtype=np.int64))
        for number, stage in enumerate(plan.stages)
        if stage.kinds
    ]

    def running(agents: int) -> int:
        return -(-agents // each)

    def leased(agents: int) -> float:
        return running(agents) + share * (agents - running(agents))

    def fits(agents: int) -> bool:
        return all(one.fits(running(agents), leased(agents), plan.reserved_pages) for one in means)

    most = sum(stage.lease_sheets * kind.pages_per_sheet for stage in plan.stages for kind in stage.kinds)
    agents = greatest(0, min(most, each * plan.max_requests), fits)
    count = running(agents)
    expired = 0.0 if workload.pause_seconds is None else _beyond(workload.pause_seconds, workload.lease_seconds or 0.0)
    return Served(count, count, agents, int(active.mean()), too_long, math.ceil(leased(agents)), expired)


@dataclass(frozen=True, slots=True)
class _Means:
    """Pages of each kind on one stage: a mean lease, a mean running request, both without the shared prefix, and that
    prefix once."""

    stage: StagePlan
    lease: tuple[float, ...]
    running: tuple[float, ...]
    prefix: tuple[int, ...]

    def fits(self, running: int, leased: float, reserved: int) -> bool:
        """What a request shares with its own lease counts twice, so a little room is left."""
        held = self._sheets(self.lease, leased)
        return (
            held <= self.stage.lease_sheets
            and self._sheets(self.running, running, reserved) + held <= self.stage.sheets
        )

    def _sheets(self, means: tuple[float, ...], times: float, reserved: int = 0) -> int:
        both = zip(means, self.prefix, strict=True)
        pages = [counts(math.ceil(times * mean) + prefix * (times > 0)) for mean, prefix in both]
        return int(bound.sheets_needed(self.stage.kinds, pages, reserved))


def _means(stage: StagePlan, plan: Plan, workload: Workload, active: Counts, leases: Counts) -> _Means:
    """`active`: lengths of requests that run. `leases`: pages by length and kind."""
    shared = workload.shared_prefix // plan.reuse_unit_tokens * plan.reuse_unit_tokens
    ahead = counts(np.minimum(plan.lookahead, active - 1))
    busy = bound.demand(stage.kinds, active - 1 - ahead, counts(1), ahead, active)
    prefix = [kind.groups * (shared // kind.page_tokens) if kind.kind.grows else 0 for kind in stage.kinds]

    def mean(pages: Counts, less: int) -> float:
        return float(np.maximum(0, pages - less).mean())

    return _Means(
        stage,
        tuple(mean(own, less) for own, less in zip(leases.T, prefix, strict=True)),
        tuple(mean(own, less) for own, less in zip(busy, prefix, strict=True)),
        tuple(prefix),
    )


def _leased_share(workload: Workload) -> float:
    """The part of the time between turns in which a session has its lease."""
    if workload.pause_seconds is None or workload.lease_seconds is None:
        return 1.0
    pauses = _quantiles(*workload.pause_seconds)
    return float(np.minimum(pauses, workload.lease_seconds).sum() / pauses.sum())


def _beyond(pause: tuple[float, float], seconds: float) -> float:
    return float((_quantiles(*pause) > seconds).mean())
