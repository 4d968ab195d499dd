"""Requests that make an engine do everything it can, the same on one rank and on several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from quire.build.engine import BuiltEngine, build_engine, prepare
from quire.build.plan import plan_checkpoint, run_settings
from quire.cache.audit import audit
from quire.core.events import (
    Event,
    LoadFinished,
    PagesCompacted,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    TokensDrafted,
)
from quire.core.request import Request, Retain
from quire.core.sampling import Sampling
from quire.core.units import MIB
from quire.engine.engine import Engine, Stream
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.prefix.leases import LeaseHeld

LENGTH, ROWS, BATCH, VOCABULARY = 160, 6, 48, 200
HOST_BYTES = 8 * MIB
CANCELLED = {"r1": 3, "r5": 5}
"""After how many tokens."""
ROOM = 10
"""Quarters of what the longest request needs."""
ALWAYS = {"reused", "accepted", "cancelled"}
HAPPENS = {
    "llama": {"RequestPreempted", "leases", "loaded"},
    "gemma3_text": {"RequestPreempted", "leases", "loaded"},
    "qwen3_next": {"PagesCompacted", "loaded"},
}
"""In addition to `ALWAYS`, to `few_requests` of each of these types, on every number of ranks and stages."""
SPECIAL: Mapping[int, Mapping[str, Any]] = {
    3: {"repetition_penalty": 1.2},
    6: {"logprobs": 2, "prompt_logprobs": 1},
}
"""How some requests are sampled besides."""
CAMPAIGN = RunOptions(device="cpu", draft="suffix", threads=1)


@dataclass
class Seen:
    """What happened on the way."""

    events: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestPreempted | PagesCompacted):
            self.events[type(event).__name__] += 1
        elif isinstance(event, TokensDrafted):
            self.events["accepted"] += event.accepted
        elif isinstance(event, RequestAdmitted):
            self.events["reused"] += event.hit_tokens
        elif isinstance(event, LoadFinished):
            self.events["loaded"] += event.tokens
        elif isinstance(event, RequestEnded):
            self.events[event.label] += 1
        elif isinstance(event, LeaseHeld):
            self.events["leases"] += 1


def settings_of(ranks: int, stages: int) -> Settings:
    return Settings(
        max_length=LENGTH,
        max_requests=ROWS,
        batch_tokens=BATCH,
        speculative_tokens=3,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        page_tokens={"": 16},
        match_unit_tokens=16,
    )


def options_of(stages: int) -> RunOptions:
    """Stages have no host memory yet."""
    return replace(CAMPAIGN, tiers=Tiers(host_bytes=HOST_BYTES if stages == 1 else None))


def campaign_plan(folder: Path, ranks: int, stages: int) -> Plan:
    """Each stage has a little more than the longest request needs: requests are preempted, or pages are compacted."""
    settings = run_settings(settings_of(ranks, stages), CAMPAIGN)
    roomy = plan_checkpoint(folder, settings, Budget(pool_bytes=64 * MIB), CAMPAIGN)
    least = [bound.minimum(stage.kinds, LENGTH, settings.speculative_tokens) for stage in roomy.stages]
    return plan_checkpoint(folder, settings, Budget(sheets=tuple(ROOM * one // 4 for one in least)), CAMPAIGN)


def build(folder: Path, ranks: int, stages: int, seen: Seen, disk: Path | None = None) -> BuiltEngine:
    """Of real processes."""
    options = options_of(stages)
    options = replace(options, tiers=replace(options.tiers, disk=disk))
    prepared = prepare(folder, options, plan=campaign_plan(folder, ranks, stages))
    return build_engine(prepared, listeners=(seen,))


def prompt_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(5, VOCABULARY, 20 + number).astype(np.int32)


def requests(first: int, again: int, outputs: int) -> list[Request]:
    """In groups with the same beginning; half greedy, half sampled with seeds, one with a penalty and one with
    log-probabilities. The last ones ask again for what was generated before, so that drafts are accepted."""
    random, found = np.random.default_rng(5), list[Request]()
    shared = random.integers(5, VOCABULARY, (4, 48)).astype(np.int32)
    for number in range(first):
        own = random.integers(5, VOCABULARY, 4 + 4 * number).astype(np.int32)
        prompt = np.concatenate([shared[number % 4], own])
        sampling = Sampling(temperature=0.9, top_p=0.9, seed=number) if number % 2 else Sampling()
        sampling = replace(sampling, **SPECIAL.get(number, {}))
        retain = Retain(60.0) if number in (2, 7) else None
        found.append(Request(f"r{number}", prompt, outputs + number, sampling=sampling, retain=retain))
    return found + [replace(one, name=f"{one.name} again", retain=None) for one in found[:again]]


def few_requests() -> list[Request]:
    return requests(8, 5, 20)


def happens(name: str, stages: int) -> set[str]:
    """What must happen to `few_requests`. Stages have no host memory yet."""
    return ALWAYS | HAPPENS[name] - ({"loaded"} if stages > 1 else set())


def drive(engine: Engine, requests: Sequence[Request]) -> dict[str, list[int]]:
    """Some come at once, others later; two are cancelled. The tokens of each."""
    coming, streams = list(requests), dict[str, Stream]()
    engine.scheduler.admission.typical_output = 2.0  # as if answers were short: too many are admitted
    for step in range(2000):
        while coming and (len(streams) < 8 or step > 5 * len(streams)):
            request = coming.pop(0)
            streams[request.name] = engine.submit(request)
        for name in CANCELLED.keys() & streams.keys():
            if len(streams[name].tokens()) >= CANCELLED[name]:
                engine.cancel(name)
        if not engine.step() and not coming:
            break
    for memory in engine.scheduler.memories:
        audit(memory, {})
    return {name: stream.tokens()[: CANCELLED.get(name)].tolist() for name, stream in streams.items()}
