"""The histogram of times, compared with the client library's own."""

from __future__ import annotations

import random
from collections import Counter

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from quire.serve.metrics import FIRST_TOKEN_BUCKETS, TOKEN_BUCKETS
from quire.serve.times import Times


def test_it_shows_what_the_client_library_shows_of_the_same_times() -> None:
    """On a bound, below the first and beyond the last too."""
    draw = random.Random(5)
    for bounds in (FIRST_TOKEN_BUCKETS, TOKEN_BUCKETS):
        ours, theirs = CollectorRegistry(), CollectorRegistry()
        times, histogram = (
            Times("t_seconds", "Times", bounds),
            Histogram("t_seconds", "Times", buckets=bounds, registry=theirs),
        )
        ours.register(times)
        values = [0.0, 0.25, 0.5, 1.0, 500.0, *(draw.choice((0.125, 0.75, 0.0078125, 16.0)) for _ in range(50))]
        times.observe(64.0)
        histogram.observe(64.0)
        times.observe_all(Counter(values))
        for value in values:
            histogram.observe(value)
        assert _lines(ours) == _lines(theirs)


def _lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
