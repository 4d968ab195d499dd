"""Metrics for Prometheus: the engine's status from its last tick, the plan's ledger, and times measured in HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from quire.core.reasons import Why
from quire.plan.plan import Plan
from quire.prefix.gap import CAUSES
from quire.serve.client import EngineClient
from quire.serve.messages import EngineTick
from quire.serve.metric_aliases import aliases
from quire.serve.responses.store import ResponseStore
from quire.serve.times import Times
from quire.warm.work import WARM_ENDINGS

FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SUBMITTED = "submitted"
"""Why a request waits that the engine has not reported yet."""
_QUEUED = (Why.QUEUED, Why.ROWS, Why.STEP_TOKENS, Why.PREFIX, Why.MEMORY, Why.CACHED_FIRST, Why.FIRST_PAGE)
WAITING = tuple(why.value for why in (*_QUEUED, Why.MUST_STAY, Why.LEASED, Why.PREEMPTED, Why.LOAD_FAILED))
"""Reasons of queued requests: each has a sample, also when no request waits for it."""
REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ANSWERING = ("/completions", "/messages", "/responses")
"""Endings of the paths whose calls generate."""


class HttpMetrics:
    """What a process that speaks HTTP measures and counts itself."""

    def __init__(self, client: EngineClient) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._first = self._histogram(
            "quire_time_to_first_token_seconds", "Time from a request's arrival to its first token", FIRST_TOKEN_BUCKETS
        )
        self._between = self._histogram(
            "quire_time_between_tokens_seconds", "Time between two tokens of one request", TOKEN_BUCKETS
        )
        self._whole = self._histogram(
            "quire_call_seconds", "Time from an HTTP request's arrival to its last byte", REQUEST_BUCKETS
        )
        self._calls = Counter(
            "quire_http_calls", "HTTP responses", ("path", "method", "status"), registry=self.registry
        )
        self.refused = Counter(
            "quire_refused", "HTTP requests refused, by error code", ("code",), registry=self.registry
        )
        self.disconnects = Counter(
            "quire_disconnects", "Clients that disconnected before the answer was complete", registry=self.registry
        )
        self.spans = span_counter(self.registry)
        ProcessCollector(registry=self.registry)
        client.on_first_token = self._first.observe
        client.on_more_tokens = self._between.observe_all

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Times:
        made = Times(name, text, bounds)
        self.registry.register(made)
        return made

    def note_response(self, path: str, method: str, status: int, seconds: float) -> None:
        self._calls.labels(path, method, str(status)).inc()
        if path.endswith(ANSWERING):
            self._whole.observe(seconds)

    async def of_all_processes(self) -> bytes:
        """This one is alone."""
        return self.text()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Metrics(HttpMetrics):
    """All metrics of a server that has one process for HTTP."""

    def __init__(self, plan: Plan, client: EngineClient, is_draining: Callable[[], bool]) -> None:
        super().__init__(client)
        self.stored = StoredGauges(self.registry)
        self.registry.register(EngineCollector(plan, client, is_draining, lambda: len(client.tickets)))


def span_counter(registry: CollectorRegistry) -> Counter:
    """Each result has a sample from the start."""
    counter = Counter("quire_spans", "OpenTelemetry spans, by result", ("result",), registry=registry)
    for result in ("sent", "failed", "dropped"):
        counter.labels(result)
    return counter


class StoredGauges:
    """What the store of responses holds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bytes = Gauge("quire_stored_bytes", "Memory of stored responses", registry=registry)
        self._responses = Gauge("quire_stored_responses", "Stored responses", registry=registry)

    def follow(self, store: ResponseStore) -> None:
        self._bytes.set_function(lambda: store.bytes)
        self._responses.set_function(lambda: store.responses)


class EngineCollector:
    """The engine's figures and the plan's, computed when they are requested."""

    def __init__(
        self, plan: Plan, client: EngineClient, is_draining: Callable[[], bool], open_requests: Callable[[], int]
    ) -> None:
        """`open_requests`: how many there are in all processes."""
        self._plan, self._client, self._is_draining = plan, client, is_draining
        self._open_requests = open_requests

    def collect(self) -> Iterable[Metric]:
        yield from self._health()
        yield from self._of_the_plan()
        yield from _pages(self._client.tick)
        running, waiting = _requests(self._client.tick, self._open_requests())
        yield from (running, waiting)
        queued = sum(sample.value for sample in waiting.samples)
        yield from aliases(self._plan, self._client.tick, running.samples[0].value, queued)
        yield from _events(self._client.tick)
        yield from _tiers(self._client.tick)
        yield from _handed(self._client.tick)

    def _health(self) -> Iterable[Metric]:
        client, tick = self._client, self._client.tick
        yield _gauge("quire_ready", "1 if the server accepts requests", client.is_ready and not self._is_draining())
        yield _gauge(
            "quire_progressing",
            "1 if steps finish in time, or there is nothing to do",
            client.progress.is_progressing(),
        )
        yield _gauge(
            "quire_books_balance", "1 if the last audit of the memory, made while idle, found no error", not tick.books
        )
        yield _gauge("quire_audited", "1 if the memory was audited after the last step", tick.is_audited)
        yield _gauge("quire_engine_resident_bytes", "Resident memory of the engine process", tick.resident_bytes)
        yield _counter("quire_engine_restarts", "Restarts of the engine process", client.restarts)

    def _of_the_plan(self) -> Iterable[Metric]:
        plan = self._plan
        yield _gauge("quire_max_length_tokens", "Longest request accepted, prompt and output", plan.max_length)
        yield _gauge("quire_sheets", "Sheets of the pool, all stages", sum(stage.sheets for stage in plan.stages))
        ledger = GaugeMetricFamily(
            "quire_ledger_bytes", "Planned device memory, by use", labels=("rank", "use", "basis")
        )
        for rank in plan.ranks:
            for line in rank.ledger:
                ledger.add_metric((str(rank.rank), line.name, line.basis), line.bytes)
        yield ledger


def _pages(tick: EngineTick) -> Iterable[Metric]:
    pages = GaugeMetricFamily("quire_pages", "Pages by kind and state", labels=("stage", "kind", "state"))
    sheets = GaugeMetricFamily("quire_sheets_of_kind", "Sheets in use by kind", labels=("stage", "kind"))
    free = GaugeMetricFamily("quire_sheets_free", "Free sheets", labels=("stage",))
    if tick.status is not None:
        for kind in tick.status.kinds:
            sheets.add_metric((str(kind.stage), kind.kind), kind.sheets)
            for state in ("used", "cached", "pinned", "backend", "free"):
                pages.add_metric((str(kind.stage), kind.kind, state), getattr(kind, f"{state}_pages"))
        for stage, count in enumerate(tick.status.free_sheets):
            free.add_metric((str(stage),), count)
    yield from (pages, sheets, free)


def _requests(tick: EngineTick, open_requests: int) -> tuple[Metric, Metric]:
    """Open requests that the engine's last status does not have yet count as submitted: while a step takes long, or
    never ends, running and waiting requests still add up to at least the open ones."""
    status, handed = tick.status, tick.handed.get("waiting", 0)
    running, by_reason = (status.running, status.waiting) if status else (0, {})
    unread = open_requests - running - sum(by_reason.values()) - handed
    waiting = GaugeMetricFamily(
        "quire_requests_waiting", "Queued requests, by the code of the reason", labels=("reason",)
    )
    for reason, count in {**dict.fromkeys(WAITING, 0), **by_reason, SUBMITTED: max(0, unread)}.items():
        waiting.add_metric((reason,), count)
    return _gauge("quire_requests_running", "Running requests (occupied batch slots)", running), waiting


def _events(tick: EngineTick) -> Iterable[Metric]:
    """Counts since the engine started; after a restart they begin at 0, as rate() expects."""
    events = tick.status.events if tick.status else {}
    sums = tick.status.sums if tick.status else {}
    admissions = CounterMetricFamily(
        "quire_prefix_lookups", "Prefix lookups of admitted requests: hits, and misses by reason", labels=("result",)
    )
    ended = CounterMetricFamily("quire_requests_ended", "Finished requests, by finish reason", labels=("ending",))
    preempted = CounterMetricFamily("quire_preemptions", "Preempted requests, by reason", labels=("reason",))
    for code in (Why.NEEDS_PAGES, Why.NEEDS_ROW):
        preempted.add_metric((code.value,), events.get(("preempted", code.value), 0))
    for (what, reason), count in events.items():
        if what == "admitted":
            admissions.add_metric((reason or "hit",), count)
        elif what == "ended":
            ended.add_metric((reason,), count)
    missed = CounterMetricFamily(
        "quire_prefix_missed_tokens",
        "Prompt tokens that were computed before and had to be recomputed, by cause",
        labels=("cause",),
    )
    for cause in CAUSES:
        missed.add_metric((cause,), sums.get(("admitted", f"missed_{cause}"), 0))
    warmed = CounterMetricFamily("quire_warm_prompts", "Prompts computed ahead, by result", labels=("result",))
    for ending in WARM_ENDINGS:
        warmed.add_metric((ending,), events.get(("warm_ended", ending), 0))
    yield from (admissions, ended, preempted, missed, warmed)
    waiting = tick.status.warm_waiting if tick.status else 0
    yield _gauge("quire_warm_waiting", "Prompts that wait until the engine is idle", waiting)
    for name, text, key in _TOTALS:
        yield _counter(name, text, sums.get(key, 0) if key[1] else _count(events, key[0]))


def _tiers(tick: EngineTick) -> Iterable[Metric]:
    is_up = GaugeMetricFamily("quire_tier_up", "1 if the tier can be read or written", labels=("tier", "way"))
    flying = GaugeMetricFamily("quire_tier_in_flight", "Transfers in flight", labels=("tier", "way"))
    size = CounterMetricFamily("quire_tier_bytes", "Bytes read from and written to the tier", labels=("tier", "way"))
    count = CounterMetricFamily(
        "quire_tier_transfers", "Record transfers, including failed ones", labels=("tier", "way")
    )
    seconds = CounterMetricFamily("quire_tier_seconds", "Total seconds of these transfers", labels=("tier", "way"))
    lookups = CounterMetricFamily("quire_tier_lookups", "Record lookups by loads", labels=("tier", "result"))
    failures = CounterMetricFamily("quire_tier_failures", "Failed operations, by operation", labels=("tier", "what"))
    for tier in tick.tiers:
        for way, can in (("read", tier.can_read), ("write", tier.can_write)):
            is_up.add_metric((tier.name, way), can)
            flying.add_metric((tier.name, way), tier.in_flight[way])
            size.add_metric((tier.name, way), tier.bytes[way])
            count.add_metric((tier.name, way), tier.transfers[way])
            seconds.add_metric((tier.name, way), tier.seconds[way])
        lookups.add_metric((tier.name, "hit"), tier.hits)
        lookups.add_metric((tier.name, "miss"), tier.misses)
        for what, times in tier.failures.items():
            failures.add_metric((tier.name, what.replace(" ", "_")), times)
    yield from (is_up, flying, size, count, seconds, lookups, failures)


def _handed(tick: EngineTick) -> Iterable[Metric]:
    ended = CounterMetricFamily(
        "quire_hand_overs", "Prompts handed over between engines, by result", labels=("result",)
    )
    for result, times in tick.handed.items():
        if result != "waiting":
            ended.add_metric((result,), times)
    yield ended
    yield _gauge("quire_hand_overs_waiting", "Hand-overs in progress", tick.handed.get("waiting", 0))


_TOTALS = (
    ("quire_steps", "Steps launched", ("step", "")),
    ("quire_forks", "Forks of running and recent requests", ("forked", "")),
    ("quire_evictions", "Evictions of cached prefixes", ("evicted", "")),
    ("quire_compactions", "Compactions of the pool", ("compacted", "")),
    ("quire_loads", "Prefixes loaded from a tier", ("loaded", "")),
    ("quire_loads_failed", "Loads from a tier that failed or timed out", ("load_failed", "")),
    ("quire_computed_tokens", "Tokens computed, prompts and outputs", ("step", "tokens")),
    ("quire_prompt_tokens", "Prompt tokens of accepted requests", ("accepted", "prompt")),
    ("quire_output_tokens", "Output tokens of finished requests", ("ended", "outputs")),
    ("quire_hit_tokens", "Prompt tokens reused from the pool (tiers not included)", ("admitted", "hit_tokens")),
    ("quire_drafted_tokens", "Draft tokens proposed", ("drafted", "drafted")),
    ("quire_accepted_tokens", "Draft tokens accepted", ("drafted", "accepted")),
    ("quire_evicted_tokens", "Tokens of evicted prefixes", ("evicted", "tokens")),
    ("quire_warm_tokens", "Tokens computed ahead while the engine was idle", ("warmed", "tokens")),
    ("quire_turns", "Turns of conversations that ended", ("turn_ended", "")),
    ("quire_turn_recurring_tokens", "Tokens of ended turns that the next turn has too", ("turn_ended", "recurs")),
    ("quire_turn_gap_tokens", "Of these, tokens after the last boundary that was kept", ("turn_ended", "gap")),
    ("quire_turn_beyond_tokens", "Tokens of ended turns that are evicted first", ("turn_ended", "beyond")),
)
"""(name, what it is, the event and the number that is added up; no number: how often it happened)."""


def _count(events: Mapping[tuple[str, str], int], what: str) -> int:
    return sum(count for (name, _), count in events.items() if name == what)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=float(value))
