"""Rows of a server with keys: one tenant cannot keep them all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.serve.keys import Tenant, add_key
from running_server import running_server

SIZE = ("--pool", "16MiB", "--max-length", "1024", "--max-requests", "4", "--batch-tokens", "64")
MOST_STEPS = 4
"""From the acceptance of a request to its row: the step that takes it back, and those in flight."""


def events(client: httpx.Client, call: str) -> list[dict[str, Any]]:
    """Of a call's first choice."""
    found: list[dict[str, Any]] = client.get(f"/v1/requests/{call}/explain").json()["choices"][0]["events"]
    return found


def metric(client: httpx.Client, name: str) -> float:
    """Read with a key: strangers see no metrics."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name + " "))


def ask(client: httpx.Client, **change: Any) -> dict[str, Any]:
    model = client.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "the fox", "max_tokens": 2, "ignore_eos": True, **change}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.story
def test_a_tenant_that_fills_all_rows_gives_one_to_each_that_comes(tiny_folder: Path, tmp_path: Path) -> None:
    """One call of many choices took every row, and others waited until its requests ended: minutes. Alice asks for
    twice as many choices as there are rows; bob gets a row within a few steps, again and again, and alice all of her
    tokens."""
    file = tmp_path / "keys.json"
    alice_key, bob_key = (add_key(file, Tenant(name, name)) for name in ("alice", "bob"))
    with (
        running_server(str(tiny_folder), *SIZE, "--keys", str(file), model="tiny") as server,
        server.client(alice_key) as alice,
        server.client(bob_key) as bob,
        ThreadPoolExecutor(1) as pool,
    ):
        long = pool.submit(ask, alice, prompt=["the quick fox", "the lazy dog"], n=4, max_tokens=600)
        server.until("alice has all rows", lambda: metric(bob, "quire_requests_running") == 4)
        for _ in range(5):
            told = ask(bob)
            assert told["usage"]["completion_tokens"] == 2
            steps = {event["what"]: event["step"] for event in events(bob, told["id"])}
            assert steps["admitted"] - steps["accepted"] <= MOST_STEPS, steps
            assert not long.done()
        counted = 'quire_preemptions_total{reason="needs_row"}'
        server.until("preemptions are counted", lambda: metric(bob, counted) > 0)
        answer = long.result()
        assert answer["usage"]["completion_tokens"] == 8 * 600
        sent_back = [event for event in _all_events(alice, answer["id"]) if event["what"] == "preempted"]
    assert sent_back
    assert {event["code"] for event in sent_back} == {"needs_row"}
    why = "another gets its row (batch slot): its tenant has more rows than its share"
    assert all(why in event["reason"] for event in sent_back)


def _all_events(client: httpx.Client, call: str) -> list[dict[str, Any]]:
    choices = client.get(f"/v1/requests/{call}/explain").json()["choices"]
    return [event for choice in choices for event in choice["events"]]
