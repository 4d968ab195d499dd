"""Metrics of several processes as one page.

Counters and histograms of the fronts are added up. What a front that died had last shown stays in the sums, so that
they never go back. The metrics `process_…` are those of each process, with a label `process`: a front's number, or hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from quire.serve.client import EngineClient
from quire.serve.fronts.channel import Channel
from quire.serve.fronts.messages import AllMetrics, FrontFigures
from quire.serve.metrics import HttpMetrics

OF_A_PROCESS = "process_"
Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""


class FrontMetrics(HttpMetrics):
    """Counted here, shown by the hub together with those of the other fronts."""

    def __init__(self, client: EngineClient, channel: Channel) -> None:
        super().__init__(client)
        self._client, self._channel = client, channel

    async def of_all_processes(self) -> bytes:
        text: bytes = await self._channel.ask(AllMetrics())
        return text

    def figures(self) -> FrontFigures:
        return FrontFigures(tuple(self.registry.collect()), len(self._client.tickets))


@dataclass(slots=True)
class _Family:
    documentation: str
    type: str
    samples: dict[Key, float] = field(default_factory=dict)


class Sums:
    """Families of metrics, added up."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, families: Iterable[Metric], process: str) -> None:
        for one in families:
            mine = self._families.setdefault(one.name, _Family(one.documentation, one.type))
            more = {"process": process} if one.name.startswith(OF_A_PROCESS) else {}
            for sample in one.samples:
                key = (sample.name, tuple({**sample.labels, **more}.items()))
                mine.samples[key] = mine.samples.get(key, 0.0) + sample.value

    def collect(self) -> Iterable[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.documentation, family.type)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


class AllProcesses:
    """The hub's registry and the figures of the fronts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._past = Sums()
        """Of fronts that died."""
        self._shown: dict[int, FrontFigures] = {}
        """By front, as last shown."""

    @property
    def open_requests(self) -> int:
        return sum(one.open_requests for one in self._shown.values())

    def front_died(self, number: int) -> None:
        if (last := self._shown.pop(number, None)) is not None:
            self._past.add((one for one in last.families if not one.name.startswith(OF_A_PROCESS)), "")

    def text(self, figures: Mapping[int, FrontFigures]) -> bytes:
        """`figures`: by front, as far as they answered; of the others the last ones are shown again."""
        self._shown.update(figures)
        sums = Sums()
        sums.add(self._registry.collect(), "hub")
        sums.add(self._past.collect(), "")
        for number, one in self._shown.items():
            sums.add(one.families, str(number))
        return generate_latest(sums)
