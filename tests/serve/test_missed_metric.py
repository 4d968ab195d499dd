"""What Prometheus reads of prefixes that were missed."""

from __future__ import annotations

import re
from pathlib import Path

from cached_traffic import Traffic, plan_of, words
from quire.explain.status import status_of
from quire.options.run import RunOptions
from quire.prefix.gap import CAUSES
from quire.serve.client import EngineClient
from quire.serve.messages import EngineSetup, EngineTick
from quire.serve.metrics import Metrics
from quire.serve.progress import Progress


def test_tokens_that_were_missed_are_counted_by_cause() -> None:
    """Every cause is there from the start; preempted requests and hits add nothing."""
    plan = plan_of("full")
    client = EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(1), lambda *_a, **_k: None)
    metrics, traffic = Metrics(plan, client, lambda: False), Traffic(plan)

    def counts() -> dict[str, float]:
        client.tick = EngineTick(0, True, status=status_of(traffic.engine))
        lines = re.findall(r'^quire_prefix_missed_tokens_total\{cause="(\w+)"\} (\S+)$', metrics.text().decode(), re.M)
        return {cause: float(count) for cause, count in lines}

    assert counts() == dict.fromkeys(CAUSES, 0)
    traffic.ask("a", words("a", 100))
    traffic.ask("hit", words("a", 100))
    assert counts() == dict.fromkeys(CAUSES, 0)
    for number in range(2):
        traffic.evict_all()
        traffic.ask(f"again {number}", words("a", 100))
    assert counts() == dict.fromkeys(CAUSES, 0) | {"evicted": 2 * 96}
