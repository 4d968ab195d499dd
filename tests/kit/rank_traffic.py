"""Requests that make an engine do everything it can, the same on one rank and on several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from quire.build.engine import BuiltEngine, build_engine, prepare
from quire.cache.audit import audit
from quire.core.events import (
    Event,
    LoadFinished,
    PagesCompacted,
    RequestAdmitted,
    RequestPreempted,
    TokensDrafted,
)
from quire.core.request import Request, Retain
from quire.core.sampling import Sampling
from quire.core.units import MIB
from quire.engine.engine import Stream
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan.settings import Budget, Settings
from quire.prefix.leases import LeaseHeld

LENGTH, ROWS, BATCH, VOCABULARY = 160, 6, 48, 200
HOST_BYTES = 8 * MIB


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
        elif isinstance(event, LeaseHeld):
            self.events["leases"] += 1


def build(folder: Path, sheets: int, ranks: int = 1, stages: int = 1, seen: Seen | None = None) -> BuiltEngine:
    settings = Settings(
        max_length=LENGTH,
        max_requests=ROWS,
        batch_tokens=BATCH,
        speculative_tokens=3,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        page_tokens={"": 16},
        match_unit_tokens=16,
    )
    tiers = Tiers(host_bytes=HOST_BYTES if stages == 1 else None)
    options = RunOptions(device="cpu", draft="suffix", tiers=tiers)
    prepared = prepare(folder, options, settings=settings, budget=Budget(sheets=(sheets,)))
    return build_engine(prepared, listeners=() if seen is None else (seen,))


def prompt_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(5, VOCABULARY, 20 + number).astype(np.int32)


def requests() -> list[Request]:
    """In groups with the same beginning; half greedy, half sampled with seeds. The last ones ask again for what was
    generated before, so that drafts are accepted."""
    random, found = np.random.default_rng(5), list[Request]()
    shared = random.integers(5, VOCABULARY, (4, 48)).astype(np.int32)
    for number in range(12):
        own = random.integers(5, VOCABULARY, 4 + 4 * number).astype(np.int32)
        prompt = np.concatenate([shared[number % 4], own])
        sampling = Sampling(temperature=0.9, top_p=0.9, seed=number) if number % 2 else Sampling()
        retain = Retain(60.0) if number in (2, 7) else None
        found.append(Request(f"r{number}", prompt, 30 + number, sampling=sampling, retain=retain))
    return found + [replace(one, name=f"{one.name} again", retain=None) for one in found[:8]]


def drive(built: BuiltEngine) -> dict[str, list[int]]:
    """Some come at once, others later; two are cancelled. The tokens of each."""
    engine, coming, streams = built.engine, requests(), dict[str, Stream]()
    engine.scheduler.admission.typical_output = 2.0  # as if answers were short: too many are admitted
    for step in range(2000):
        while coming and (len(streams) < 8 or step > 5 * len(streams)):
            request = coming.pop(0)
            streams[request.name] = engine.submit(request)
        if step in (9, 30):
            engine.cancel(f"r{1 if step == 9 else 8}")
        if not engine.step() and not coming:
            break
    for memory in engine.scheduler.memories:
        audit(memory, {})
    return {name: stream.tokens().tolist() for name, stream in streams.items()}
