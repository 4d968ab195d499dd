"""What spans say: attributes by OpenTelemetry's conventions for HTTP and for generative AI, and Quire's own.

Numbers, names and reasons; never a prompt, an answer or another tenant's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.explain.explanation import without_others
from quire.explain.sentences import sentence
from quire.serve.logs import shown_path
from quire.text.question import Question
from quire.traces.phases import Phase

Attributes = dict[str, Any]
COMPLETIONS = "/v1/completions"
USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "first_token_seconds": "gen_ai.response.time_to_first_chunk",
}
"""By the log's names."""


def of_call(method: str, path: str, scheme: str, tenant: str) -> Attributes:
    """A path that a client made up is cut, as in the log."""
    head = {"http.request.method": method, "url.path": shown_path(path), "url.scheme": scheme}
    return head | {"quire.tenant": tenant}


def of_question(question: Question, path: str, model: str, call: str) -> Attributes:
    """`call`: its id, for /v1/requests/{call}/explain."""
    sampling = question.sampling
    return {
        "gen_ai.operation.name": "text_completion" if path == COMPLETIONS else "chat",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": max(question.max_tokens),
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": question.samples,
        "quire.call": call,
    }


def of_end(status: int, record: Mapping[str, Any]) -> Attributes:
    """Of a call that is answered: its status, and what its line in the log says."""
    found: Attributes = {"http.response.status_code": status}
    found |= {name: record[own] for own, name in USAGE.items() if record.get(own) is not None}
    if any(record.get("finish", ())):
        found["gen_ai.response.finish_reasons"] = [one or "error" for one in record["finish"]]
    if record.get("error"):
        found["error.type"] = record["error"]
    if record.get("left"):
        found["quire.client_left"] = True
    return found


def of_phase(phase: Phase, request: str) -> Attributes:
    found: Attributes = {"quire.request": request}
    found |= {f"quire.{name}": count for name, count in phase.numbers.items()}
    if phase.reason is not None:
        reason = without_others(phase.reason, (request,))
        found |= {"quire.reason": reason.code.value, "quire.because": sentence(reason)}
    return found
