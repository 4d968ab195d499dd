"""A histogram of times that is filled with all times of a step at once. The client's own takes them one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Times(Collector):
    """For one thread."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """`bounds`: the longest time of each bucket in seconds, in order; one more bucket has what is longer."""
        self._name, self._text, self._bounds = name, text, tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self.observe_all({value: 1})

    def observe_all(self, values: Mapping[float, int]) -> None:
        """Each value as often as it says. All rows of a step have the same time since the step before."""
        for value, times in values.items():
            self._sum += value * times
            self._counts[bisect_left(self._bounds, value)] += times

    def collect(self) -> Iterable[Metric]:
        found = HistogramMetricFamily(self._name, self._text)
        names = (*(repr(bound) for bound in self._bounds), "+Inf")
        found.add_metric((), list(zip(names, accumulate(self._counts), strict=True)), self._sum)
        yield found
