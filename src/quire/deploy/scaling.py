"""Ray's question how many replicas there should be. It calls this in its controller, which gets a copy of this file."""

from __future__ import annotations

from typing import Any

CALLS = "calls"
"""What each replica reports: calls that the gateway has given it and that have not ended, running or waiting."""


def by_calls(context: Any) -> tuple[float, dict[str, Any]]:
    """Calls, divided by the requests that the plan of one replica runs at once. Ray keeps limits and delays."""
    calls = (context.aggregated_metrics or {}).get(CALLS, {})
    return sum(calls.values()) / context.config.target_ongoing_requests, {}
