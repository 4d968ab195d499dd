"""From a description of traffic to how many users a plan serves at once.

Lengths are taken as log-normal through the given median and 95th percentile. A request is counted half-way through its
output, an idle session with all of it. A prefix that all requests share is kept once, by the kinds that keep whole
prefixes; the others keep their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from quire.core.errors import InputError
from quire.core.search import greatest
from quire.kinds import Counts, counts
from quire.options.texts import parse_tokens
from quire.plan import bound
from quire.plan.plan import Plan, StagePlan

QUANTILES = 1000
EXAMPLE = "prompt=1200/6000,output=250/900,shared=800,sessions=4"


@dataclass(frozen=True, slots=True)
class Workload:
    prompt_p50: int
    prompt_p95: int
    output_p50: int
    output_p95: int
    shared_prefix: int = 0
    idle_sessions: int = 0
    """Sessions kept warm in the cache for each one that is being computed."""


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


def parse_workload(text: str) -> Workload:
    """`prompt=p50/p95,output=p50/p95[,shared=N][,sessions=N]`."""
    items = [item.partition("=") for item in text.replace(" ", ",").split(",") if item]
    fields = {name: value for name, _, value in items}
    if len(fields) < len(items):
        raise InputError(f"--workload {text!r} says something twice: write it like {EXAMPLE}")
    unknown = sorted(set(fields) - {"prompt", "output", "shared", "sessions"})
    if unknown or not {"prompt", "output"} <= set(fields):
        raise InputError(f"--workload {text!r} is not understood: write it like {EXAMPLE}")
    prompt, output = _percentiles(fields["prompt"]), _percentiles(fields["output"])
    shared = parse_tokens(fields["shared"]) if fields.get("shared", "0") != "0" else 0
    sessions = fields.get("sessions", "0")
    if not (sessions.isascii() and sessions.isdecimal() and len(sessions) < 7):
        raise InputError(f"sessions={sessions!r} is not a number of idle sessions per active one: write sessions=4")
    if shared > prompt[0]:
        raise InputError(f"shared={shared} is more than half of the prompts hold: lower it to at most {prompt[0]}")
    return Workload(*prompt, *output, shared, int(sessions))


def _percentiles(text: str) -> tuple[int, int]:
    parts = [parse_tokens(part) for part in text.split("/")]
    median, high = (parts[0], parts[-1]) if len(parts) <= 2 else (0, 0)
    if not 1 <= median <= high:
        raise InputError(f"{text!r} is not p50/p95: write the median, then the 95th percentile, like 1200/6000")
    return median, high


def _lengths(median: int, high: int) -> Counts:
    """Equally likely lengths: the quantiles of a log-normal."""
    sigma = math.log(high / median) / NormalDist().inv_cdf(0.95)
    normal = NormalDist(math.log(median), sigma) if sigma else None
    points = [(i + 0.5) / QUANTILES for i in range(QUANTILES)]
    return counts(np.array([round(math.exp(normal.inv_cdf(p))) if normal else median for p in points], dtype=np.int64))


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
