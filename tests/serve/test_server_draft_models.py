"""A server with a draft model: who asks sees the same answers, and the metrics say how many guesses came true."""

from __future__ import annotations

from pathlib import Path

from running_server import running_server

SIZE = ("--pool", "4MiB", "--max-length", "256", "--max-requests", "4", "--batch-tokens", "64")


def test_a_server_with_a_draft_model_counts_its_guesses(tiny_folder: Path) -> None:
    """The draft model equals the model here."""
    draft = ("--draft-model", str(tiny_folder), "--draft-tokens", "2")
    with running_server(str(tiny_folder), *SIZE, *draft, model="tiny") as server, server.client() as client:
        asked = {"model": client.get("/v1/models").json()["data"][0]["id"], "prompt": "the fox", "max_tokens": 12}
        answer = client.post("/v1/completions", json={**asked, "temperature": 0}).json()
        assert answer["usage"]["completion_tokens"] > 0
        server.until("the guesses are counted", lambda: server.metric("quire_drafted_tokens_total") > 0)
        assert server.metric("quire_accepted_tokens_total") == server.metric("quire_drafted_tokens_total")
