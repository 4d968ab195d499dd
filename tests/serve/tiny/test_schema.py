"""The OpenAPI document, taken at its word: whatever it allows and forbids, nothing breaks the server."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from examples import ALL_EXAMPLES
from running_server import RunningServer
from serve_kit import CHAT, MESSAGES

pytestmark = pytest.mark.servers

Statuses = Counter[tuple[str, int]]
EXAMPLES = 12 if os.environ.get(ALL_EXAMPLES) else 6
"""For each path and method."""
LEAST_ANSWERED = 0.3
FOREIGN = re.compile(
    r"[Ii]nput should|[Ff]ield required|valid (string|integer|list|dict)|constrained|function-|something else"
)
"""The words of whoever checks bodies for us: clients read the API's own."""


@pytest.fixture(scope="module")
def document(tiny_server: RunningServer) -> dict[str, Any]:
    return dict(tiny_server.get("/openapi.json").json())


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_call_that_the_document_describes_breaks_the_server(
    tiny_server: RunningServer, keys: Any, document: dict[str, Any], mode: GenerationMode
) -> None:
    """No 5xx. Of calls that keep to it at least three in ten are answered, also of those that yield tokens: a server
    that refuses everything would pass otherwise."""
    statuses: Statuses = Counter()
    schema = schemathesis.openapi.from_dict(_small(document, mode is GenerationMode.POSITIVE))
    for operation in schema.get_all_operations():
        _try(operation.ok(), mode, tiny_server, keys.admin, statuses)
    assert not [status for _, status in statuses if status >= 500], statuses
    if mode is GenerationMode.POSITIVE:
        counting = ({"/v1/responses/input_tokens"}, {f"{MESSAGES}/count_tokens"})
        generating = ({CHAT}, {"/v1/completions"}, {"/v1/responses"}, {MESSAGES}, *counting)
        for paths in (set(document["paths"]), *generating):
            calls = {key: count for key, count in statuses.items() if key[0] in paths}
            answered = sum(count for (_, status), count in calls.items() if status < 300)
            assert answered >= LEAST_ANSWERED * sum(calls.values()), calls
    else:
        assert statuses[CHAT, 400] > 0, statuses
        assert statuses[MESSAGES, 400] > 0, statuses
    assert not tiny_server.told("internal_error")


GRAMMARS = {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf"}
"""Other names of `response_format`: of several together all but one are refused."""


def _small(document: dict[str, Any], keeps_to_it: bool) -> dict[str, Any]:
    """What a test on two cores can wait for: this model, few tokens. Calls that keep to the document name one grammar
    at most, no response before them and no choice of tools, are no forks, and no message to answer ends with calls: no
    schema can say what these must fit."""
    document = copy.deepcopy(document)
    for name in ("ChatBody", "CompletionBody"):
        body = document["components"]["schemas"][name]
        body["properties"]["n"] = {"type": "integer", "minimum": 1, "maximum": 2}
        body["properties"]["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
        body["required"] = [*body["required"], "max_tokens"]
        for field in GRAMMARS if keeps_to_it else ():
            del body["properties"][field]
        if keeps_to_it:
            _begin_with(body, "messages" if name == "ChatBody" else "prompt")
    stream = "/v1/inspect/stream"
    if keeps_to_it:
        (frames,) = document["paths"][stream]["get"]["parameters"]
        frames |= {"required": True, "schema": {"type": "integer", "minimum": 1, "maximum": 2}}  # else it never ends
    else:
        del document["paths"][stream]  # without a number of frames it never ends
    document["components"]["schemas"]["RetainBody"]["properties"]["seconds"]["maximum"] = 3600
    body = document["components"]["schemas"]["ResponseBody"]
    body["properties"]["max_output_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
    body["required"] = [*body["required"], "max_output_tokens"]
    for field in ("previous_response_id", "top_logprobs", "tool_choice") if keeps_to_it else ():
        del body["properties"][field]
    message = document["components"]["schemas"]["MessageBody"]["properties"]
    message["max_tokens"] |= {"maximum": 4}
    if keeps_to_it:
        items = [{"$ref": f"#/components/schemas/{name}"} for name in ("UserMessage", "SystemMessage")]
        message["messages"] |= {"items": {"oneOf": items}, "maxItems": 3}
    return document


def _begin_with(body: dict[str, Any], field: str) -> None:
    """No fork of another answer: no schema can say which there are."""
    del body["properties"]["fork_from"], body["anyOf"]
    body["required"] = [*body["required"], field]
    begins = body["properties"][field]
    if "anyOf" in begins:
        begins["anyOf"] = [one for one in begins["anyOf"] if one.get("type") != "null"]
    else:
        begins["minItems"] = 1


def _try(operation: Any, mode: GenerationMode, server: RunningServer, key: str, statuses: Statuses) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        answer = case.call(base_url=server.address, headers={"authorization": f"Bearer {key}"})
        statuses[operation.path, answer.status_code] += 1
        if answer.status_code == 400:
            assert not FOREIGN.search(answer.json()["error"]["message"]), answer.text
        case.validate_response(answer, checks=(not_a_server_error,))

    # A path without parameters cannot be called wrongly.
    with contextlib.suppress(*([Unsatisfiable] if mode is GenerationMode.NEGATIVE else [])):
        attempt()


@pytest.mark.parametrize("frames", ["0", "-1", "x", "1.5", "1e99"])
def test_a_stream_of_no_number_of_frames_is_refused(tiny_server: RunningServer, keys: Any, frames: str) -> None:
    with tiny_server.client(keys.admin) as client:
        assert client.get("/v1/inspect/stream", params={"frames": frames}).status_code == 400
