"""The panels that show a server over time: what each asks Prometheus, its unit, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass

TIMES, NOW, BARS = "timeseries", "stat", "bargauge"
"""How a panel is drawn, in Grafana's words."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """In Grafana's words: short is a plain number."""
    description: str
    queries: tuple[tuple[str, str], ...]
    """(legend, PromQL)."""
    drawn: str = TIMES


def _quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    rate = f"sum(rate({histogram}_bucket[1m])) by (le)"
    return tuple((name, f"histogram_quantile({part}, {rate})") for name, part in (("median", "0.5"), ("95 %", "0.95")))


def _rate(metric: str) -> str:
    return f"rate({metric}[1m])"


def _rates(metric: str, *labels: str) -> str:
    return f"sum({_rate(metric)}) by ({', '.join(labels)})"


PANELS = (
    Panel(
        "Health",
        "short",
        "1 or 0: requests are accepted, steps finish in time, the last audit of the memory found no error.",
        (
            ("ready", "quire_ready"),
            ("progress", "quire_progressing"),
            ("books balance", "quire_books_balance"),
        ),
        NOW,
    ),
    Panel(
        "Requests",
        "short",
        "Running requests, and queued ones by the reason why they wait.",
        (
            ("running", "quire_requests_running"),
            ("waiting: {{reason}}", "sum(quire_requests_waiting) by (reason)"),
        ),
    ),
    Panel(
        "Tokens per second",
        "short",
        "Generated: of finished requests. Computed: prompts and outputs. Reused: prompt tokens found in the pool.",
        (
            ("generated", _rate("quire_output_tokens_total")),
            ("computed", _rate("quire_computed_tokens_total")),
            ("reused", _rate("quire_hit_tokens_total")),
        ),
    ),
    Panel(
        "Time to first token",
        "s",
        "From a request's arrival to its first token, the queue included.",
        _quantiles("quire_time_to_first_token_seconds"),
    ),
    Panel(
        "Time between tokens",
        "s",
        "Between two tokens of one request.",
        _quantiles("quire_time_between_tokens_seconds"),
    ),
    Panel(
        "Whole calls",
        "s",
        "Calls that generate, from the first byte of the request to the last byte of the answer.",
        _quantiles("quire_call_seconds"),
    ),
    Panel(
        "Pages by kind",
        "short",
        "Used: held by requests. Cached: held by the cache alone, and evicted when requests need them.",
        (("{{kind}} {{state}}", "sum(quire_pages) by (kind, state)"),),
    ),
    Panel(
        "Sheets",
        "short",
        "The pool: sheets of each kind, and those that any kind may take.",
        (
            ("free", "sum(quire_sheets_free)"),
            ("{{kind}}", "sum(quire_sheets_of_kind) by (kind)"),
            ("all", "quire_sheets"),
        ),
    ),
    Panel(
        "Leases",
        "short",
        "Leased prefixes, and leases that ended per second; broken ones are those that the server could not keep.",
        (
            ("held", "quire_leases"),
            ("ended: {{ending}}", _rates("quire_leases_ended_total", "ending")),
        ),
    ),
    Panel(
        "Prefix lookups per second",
        "short",
        "Prompts whose beginning was found in the cache, and why it was not.",
        (("{{result}}", _rates("quire_prefix_lookups_total", "result")),),
    ),
    Panel(
        "Prompt tokens computed again per second",
        "short",
        "By cause. Many that were evicted: the server needs more memory, or a host tier.",
        (("{{cause}}", _rates("quire_prefix_missed_tokens_total", "cause")),),
    ),
    Panel(
        "Room made per second",
        "short",
        "Preemptions by reason, evictions of cached prefixes, compactions of the pool.",
        (
            ("preempted: {{reason}}", _rates("quire_preemptions_total", "reason")),
            ("evictions", _rate("quire_evictions_total")),
            ("compactions", _rate("quire_compactions_total")),
        ),
    ),
    Panel(
        "Tiers: bytes per second",
        "Bps",
        "Prefixes read from and written to host memory, files and servers.",
        (("{{tier}} {{way}}", _rates("quire_tier_bytes_total", "tier", "way")),),
    ),
    Panel(
        "Tiers: seconds per record",
        "s",
        "How long one record takes, waiting included.",
        (
            (
                "{{tier}} {{way}}",
                f"{_rates('quire_tier_seconds_total', 'tier', 'way')} / "
                f"{_rates('quire_tier_transfers_total', 'tier', 'way')}",
            ),
        ),
    ),
    Panel(
        "Tiers: failures per second",
        "short",
        "Operations that failed, and loads that failed or were late: their requests compute the tokens instead.",
        (
            ("{{tier}} {{what}}", _rates("quire_tier_failures_total", "tier", "what")),
            ("loads", _rate("quire_loads_failed_total")),
        ),
    ),
    Panel(
        "Answers per second",
        "short",
        "By status.",
        (("{{status}}", _rates("quire_http_calls_total", "status")),),
    ),
    Panel(
        "Refused and disconnected per second",
        "short",
        "Refused calls by error code, and clients that disconnected before their answer was complete.",
        (
            ("{{code}}", _rates("quire_refused_total", "code")),
            ("disconnected", _rate("quire_disconnects_total")),
        ),
    ),
    Panel(
        "Draft tokens per second",
        "short",
        "Draft tokens proposed and accepted: the ratio says whether speculation pays.",
        (
            ("proposed", _rate("quire_drafted_tokens_total")),
            ("accepted", _rate("quire_accepted_tokens_total")),
        ),
    ),
    Panel(
        "Ledger",
        "bytes",
        "Planned device memory by use.",
        (("{{use}}", "sum(quire_ledger_bytes) by (use)"),),
        BARS,
    ),
    Panel(
        "Resident memory",
        "bytes",
        "Host memory of the engine's process and of the HTTP processes.",
        (
            ("engine", "quire_engine_resident_bytes"),
            ("HTTP {{process}}", "process_resident_memory_bytes"),
        ),
    ),
    Panel(
        "Engine restarts",
        "short",
        "Each one ended the requests in progress; the log has engine_died.",
        (("restarts", "quire_engine_restarts_total"),),
        NOW,
    ),
)
