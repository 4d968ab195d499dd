"""A server whose prefixes live on beyond the pool: it finds them again after a restart."""

from __future__ import annotations

from pathlib import Path

from running_server import running_server
from serve_kit import SIZE, chat

LONG = [{"role": "user", "content": "the lazy dog sees the quick brown fox, and " * 8}]


def test_what_was_computed_is_there_after_a_restart(tiny_folder: Path, tmp_path: Path) -> None:
    answers, loads = [], []
    for _ in range(2):
        tiers = ("--host-memory", "8MiB", "--disk", str(tmp_path / "store"))
        with running_server(str(tiny_folder), *SIZE, *tiers, "--model-name", "tiny", model="tiny") as server:
            with server.client() as client:
                answers.append(chat(client, messages=LONG, max_tokens=8, temperature=0).json()["choices"])
            server.until("it is idle", server.is_idle)
            loads.append(server.metric("quire_loads_total"))
            assert any("host" in line for line in server.report)
    assert answers[0] == answers[1]
    assert loads == [0, 1]
