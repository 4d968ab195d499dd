"""Tiny models behind tiers: an engine with host memory and connectors, and what it brought back from where."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from quire.core.connector import Connector
from quire.core.events import Event, LoadFailed, LoadFinished
from quire.core.rules import Rules
from quire.engine.engine import Engine, Stream
from quire.explain.sentences import sentence
from quire.options.tiers import Tiers
from quire.plan.plan import Plan
from quire.worker.steps.drafting import DeferredDrafter
from tiny_models import Service

HOST_BYTES = 8 << 20
MODELS = {"llama": "full", "gemma3_text": "full and window", "lfm2": "full and state", "deepseek_v3": "latent"}


class TieredService(Service):
    """A service whose cache can be dropped: what it then finds came from a tier."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        connectors: Sequence[Connector] = (),
        host_bytes: int = HOST_BYTES,
        load_seconds: float = 30.0,
        weights: str = "tiny",
        draft: str | None = None,
    ) -> None:
        tiers = Tiers(host_bytes, connectors=tuple(connectors))
        super().__init__(name, plan, draft=draft, tiers=tiers, weights=weights)
        self.events: list[Event] = []
        self.engine = Engine(
            plan,
            self.runner,
            tier=self.stack,
            keeper=self.stack,
            drafter=None if draft is None else DeferredDrafter(),
            rules=Rules(load_seconds=load_seconds),
            listeners=[self.events.append],
        )

    def ask(self, prompt: np.ndarray, outputs: int, name: str, scope: str = "") -> Stream:
        (stream,) = self.send([prompt], outputs, name, scope)
        self.engine.drain()
        return stream

    def drop_cache(self) -> None:
        """Forgets what lies in the pool, and spoils every byte of it."""
        self.engine.scheduler.reuse.index.drop()
        self.runner.arena.bytes.fill_(0xFF)

    def tokens(self, what: type[LoadFailed | LoadFinished]) -> list[int]:
        """Of loads, as events report them."""
        return [event.tokens for event in self.events if isinstance(event, what)]

    def reasons(self) -> list[str]:
        return [sentence(event.reason) for event in self.events if isinstance(event, LoadFailed)]


logging.getLogger("quire.tiers").setLevel(logging.CRITICAL + 1)
