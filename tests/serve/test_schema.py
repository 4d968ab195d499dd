"""The OpenAPI document, taken at its word: whatever it allows and forbids, nothing breaks the server."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from running_server import RunningServer

EXAMPLES = 12
"""For each path and method."""
LEAST_ANSWERED = 0.3


@pytest.fixture(scope="module")
def document(tiny_server: RunningServer) -> dict[str, Any]:
    return dict(tiny_server.get("/openapi.json").json())


def test_no_call_that_the_document_describes_breaks_the_server(
    tiny_server: RunningServer, keys: Any, document: dict[str, Any]
) -> None:
    """No 5xx, and at least three in ten calls are answered: a server that refuses everything would pass otherwise."""
    _small(document)
    statuses: Counter[int] = Counter()
    schema = schemathesis.openapi.from_dict(document)
    for operation in schema.get_all_operations():
        _try(operation.ok(), tiny_server, keys.admin, statuses)
    answered = sum(count for status, count in statuses.items() if 200 <= status < 300)
    assert not [status for status in statuses if status >= 500], statuses
    assert answered >= LEAST_ANSWERED * statuses.total(), statuses
    assert statuses[400] > 0, statuses
    assert not tiny_server.told("internal_error")


def _small(document: dict[str, Any]) -> None:
    """What a test on two cores can wait for: this model, few tokens."""
    for name in ("ChatBody", "CompletionBody"):
        body = document["components"]["schemas"][name]
        body["properties"]["model"] = {"const": "tiny"}
        body["properties"]["n"] = {"type": "integer", "minimum": 1, "maximum": 2}
        body["properties"]["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
        body["required"] = [*body["required"], "max_tokens"]


def _try(operation: Any, server: RunningServer, key: str, statuses: Counter[int]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def attempt(case: Any) -> None:
        answer = case.call(base_url=server.address, headers={"authorization": f"Bearer {key}"})
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=(not_a_server_error,))

    attempt()
