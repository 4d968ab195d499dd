"""The HTTP process's side of leases: asks the engine, counts the answers, and notices leases that a restart ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.explain.leases import LeaseReport
from quire.prefix.leases import LeaseEnding
from quire.serve.away import EngineAway
from quire.serve.client import EngineClient
from quire.serve.engine_leases import BrokenLease, EndLease, GrantLease, LeaseOutcome, LeaseQuestion, LeaseReply
from quire.serve.retention import lease_document

ANSWER_SECONDS = 5.0
RESTARTED = "engine_restarted"
REMEMBERED = 4096


class LeaseRegister:
    """A collector of metrics too."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._granted = 0
        self._refused: Counter[str] = Counter()
        self._held: dict[str, tuple[LeaseReport, int]] = {}
        """By name: leases that were granted, and how often the engine had been restarted by then."""
        self._lost: dict[str, BrokenLease] = {}
        """Ended by a restart, until their tenant is answered."""
        self._lost_count = 0

    async def ask(self, question: LeaseQuestion) -> LeaseReply:
        """Raises EngineAway if the engine does not answer."""
        reply = await self._client.leases(question, ANSWER_SECONDS)
        if isinstance(question, GrantLease | LeaseOutcome):
            for report in reply.leases:
                self._note(report)
        elif isinstance(question, EndLease):
            self._held.pop(question.name, None)
        for one in reply.broken:
            self._held.pop(one.name, None)
        owner = question.terms.owner if isinstance(question, GrantLease) else question.owner
        return replace(reply, broken=(*reply.broken, *self._take_lost(owner)))

    async def outcome(self, owner: str, request: str) -> dict[str, Any]:
        """What an answer says of the lease that its request asked for."""
        try:
            reply = await self.ask(LeaseOutcome(owner, request))
        except EngineAway as error:
            return {"object": "lease", "granted": False, "code": error.code, "message": str(error)}
        return lease_document(reply.leases[0], reply.broken) if reply.leases else {"object": "lease", "granted": False}

    def _note(self, report: LeaseReport) -> None:
        if not report.is_granted:
            self._refused[report.refusal] += 1
            return
        self._granted += 1
        self._find_lost()
        self._held[report.name] = (report, self._client.restarts)
        if len(self._held) > REMEMBERED:
            del self._held[next(iter(self._held))]

    def _find_lost(self) -> None:
        """Leases of an engine that is gone; those whose time is over are forgotten."""
        now = time.time()
        for name, (report, restarts) in list(self._held.items()):
            is_over = report.until is None or report.until <= now
            if is_over or restarts != self._client.restarts:
                del self._held[name]
            if not is_over and restarts != self._client.restarts:
                self._lost[name] = BrokenLease(name, report.owner, RESTARTED, report.tokens, now)
                self._lost_count += 1

    def _take_lost(self, owner: str) -> list[BrokenLease]:
        self._find_lost()
        return [self._lost.pop(name) for name, one in list(self._lost.items()) if one.owner == owner]

    # ── metrics ───────────────────────────────────────────────────────────

    def collect(self) -> Iterable[Metric]:
        self._find_lost()
        status = self._client.tick.status
        held, size = (status.leases, status.leased_bytes) if status else (0, 0)
        yield GaugeMetricFamily("quire_leases", "Leases held now", value=held)
        yield GaugeMetricFamily("quire_leased_bytes", "KV memory of leased prefixes, per rank", value=size)
        yield CounterMetricFamily("quire_leases_granted", "Leases granted", value=self._granted)
        refused = CounterMetricFamily("quire_leases_refused", "Leases refused, by reason", labels=("reason",))
        for reason, count in self._refused.items():
            refused.add_metric((reason,), count)
        ended = CounterMetricFamily("quire_leases_ended", "Leases that ended, by reason", labels=("ending",))
        events = status.events if status else {}
        for ending in LeaseEnding:
            ended.add_metric((ending.value,), events.get(("lease_ended", ending.value), 0))
        ended.add_metric((RESTARTED,), self._lost_count)
        yield from (refused, ended)
