"""A server whose prefixes live on beyond the pool: it finds them again after a restart."""

from __future__ import annotations

from pathlib import Path

from running_server import running_server
from serve_kit import SIZE, chat

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
            server.until("its tiers are reported", lambda: any("host: 8.00 MiB" in line for line in server.report), 5)
    assert answers[0] == answers[1]
    assert loads == [0, 1]
    assert cached[0] == 0 < cached[1], "what a tier brings was not computed again either"
    assert read[0][0] == 0
    assert read[1][0] > 0
    assert read[1][1] >= read[1][0]


def test_tiers_that_do_not_work_promise_nothing_and_the_server_serves(tiny_folder: Path, tmp_path: Path) -> None:
    """A folder that is a file, a server that is not there, a store whose writes are lost."""
    (tmp_path / "file").touch()
    wrong = ("--disk", f"{tmp_path / 'file'}:1GiB", "--remote", "redis://127.0.0.1:1", "--connector", "doubles:Sieve")
    with running_server(str(tiny_folder), *SIZE, *wrong, "--model-name", "tiny", model="tiny") as server:
        server.until("its tiers are reported", lambda: any(line.startswith("sieve") for line in server.report), 5)
        disk, remote, sieve = server.report[-3:]
        assert disk.startswith("disk: NOT IN USE, cannot use the folder ")
        assert disk.endswith(": Not a directory\n")
        assert remote.startswith("remote: NOT IN USE, redis://127.0.0.1:1 cannot be reached: ")
        assert sieve.startswith("sieve: READ ONLY, nothing new is kept there: cannot write: what was written does not ")
        assert not any("stay warm" in line for line in (disk, remote, sieve))
        assert [line["message"].split(": ")[0] for line in server.told("tier")] == [
            "tier disk",
            "tier remote",
            "tier sieve",
        ]
        with server.client() as client:
            assert chat(client, messages=LONG, max_tokens=2).status_code == 200
            kept_by = [client.delete("/v1/cache").json()["kept_by"] for _ in range(2)]
            assert kept_by == [["disk", "remote", "sieve"]] * 2
