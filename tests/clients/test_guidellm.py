"""`guidellm`: a short benchmark with local prompts, in which no request fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asked import MODEL, TEXT
from commands import command, output_of

REQUESTS = 4
POLL_SECONDS = 3
"""If its process waits this long for the next result, guidellm takes those that are there for all. By default 0.1 s,
which a busy machine can take: then it reports fewer requests, none of them as failed."""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_every_request_of_a_benchmark_completes(v1: str, folder: Path, tmp_path: Path, path: str) -> None:
    """guidellm streams, asks for usage in every chunk and counts with the checkpoint's tokenizer."""
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    lines = [json.dumps({"prompt": f"{TEXT} {place}", "output_tokens_count": 8}) for place in range(REQUESTS)]
    prompts.write_text("\n".join(lines))
    backend = f"kind=openai_http,target={v1.removesuffix('/v1')},model={MODEL},request_format={path}"
    output_of(
        command("guidellm"), "run", "--backend", backend,
        "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=json_file,path={prompts}", "--tokenizer", f"kind=huggingface_auto,model={folder}",
        "--output", f"kind=json,path={report}", "--disable-console-interactive", folder=tmp_path,
        HF_HOME=str(tmp_path / "home"), GUIDELLM__MP_POLL_INTERVAL=str(POLL_SECONDS),
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests: dict[str, list[Any]] = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"]), len(requests["incomplete"])) == (REQUESTS, 0, 0)
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {8}
