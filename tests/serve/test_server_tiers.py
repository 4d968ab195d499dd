"""A server whose prefixes live on beyond the pool: it finds them again after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from running_server import running_server
from serve_kit import SIZE, chat

pytestmark = pytest.mark.servers

TIERS = ("host", "disk")
LONG = [{"role": "user", "content": "the lazy dog sees the quick brown fox, and " * 8}]


def test_what_was_computed_is_there_after_a_restart(tiny_folder: Path, tmp_path: Path) -> None:
    answers, cached, loads, read, flying = [], [], [], [], "quire_tier_in_flight"
    for _ in range(2):
        tiers = ("--host-memory", "8MiB", "--disk", str(tmp_path / "store"))
        with running_server(str(tiny_folder), *SIZE, *tiers, "--model-name", "tiny", model="tiny") as server:
            with server.client() as client:
                answer = chat(client, messages=LONG, max_tokens=8, temperature=0).json()
                answers.append(answer["choices"])
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            server.until("it is idle", server.is_idle)
            server.until("nothing goes out", lambda: not any(server.metric(flying, tier=tier) for tier in TIERS))
            loads.append(server.metric("quire_loads_total"))
            read.append([server.metric("quire_tier_bytes_total", tier=tier, way="read") for tier in TIERS])
            server.until("its tiers are reported", lambda: any("host: 8.00 MiB" in line for line in server.report))
    assert answers[0] == answers[1]
    assert loads == [0, 1]
    assert cached[0] == 0 < cached[1], "what a tier brings was not computed again either"
    assert read[0][0] == 0
    assert read[1][0] > 0
    assert read[1][1] >= read[1][0]
