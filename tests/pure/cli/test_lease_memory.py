"""`--lease-memory` as a user meets it: the report, the JSON, saved plans, agents, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command import refused, run_json, run_text
from quire.core.units import GIB

AGENTS = "prompt=20k/60k,output=250/900,shared=800,sessions=40"


def test_by_default_leases_take_half_of_what_the_longest_request_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """They cost no length, and the table shows what other sizes would hold and cost."""
    data = run_json(capsys, "gemma-3-27b", "--pool", "64GiB")
    leases = data["leases"]
    left = data["sheets"] - data["minimum_sheets"]["131072"]
    assert leases["lease_sheets"] == [left // 2]
    assert leases["lease_bytes"] == left // 2 * data["sheet_bytes"] == data["stages"][0]["lease_bytes"]
    assert leases["session_tokens"] == 32_768
    assert data["max_length"] == 131_072
    assert leases["sessions"] == leases["lease_bytes"] // leases["session_bytes"]
    assert [row["sessions"] for row in leases["rows"]] == [0, 1, 2, 4, 8, 16]
    lengths = [row["max_length"] for row in leases["rows"]]
    assert lengths == sorted(lengths, reverse=True)


def test_each_row_of_the_table_is_what_that_lease_memory_gives(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with the row's --lease-memory has its sessions and its longest length."""
    asked = ("gemma-3-27b", "--pool", "16GiB")
    rows = run_json(capsys, *asked)["leases"]["rows"]
    assert len(rows) > 3
    for row in rows:
        data = run_json(capsys, *asked, "--lease-memory", str(row["lease_bytes"]))
        assert data["max_length"] == row["max_length"]
        assert data["leases"]["sessions"] == row["sessions"]


def test_a_pool_that_one_request_fills_says_what_a_session_would_need(capsys: pytest.CaptureFixture[str]) -> None:
    """The size that the report names works."""
    asked = ("smollm2-135m", "--pool", "100MiB")
    text, _ = run_text(capsys, "plan", *asked)
    size = re.search(r"--lease-memory (\d+) would hold one", text)
    assert "0 sheets, 0 B per rank, for leased prefixes: 0 sessions of 2k tokens" in text
    assert size
    leased = run_json(capsys, *asked, "--lease-memory", size[1])
    assert leased["leases"]["sessions"] == 1
    assert leased["leases"]["session_tokens"] == 2048
    assert leased["max_length"] < run_json(capsys, *asked)["max_length"]


def test_no_lease_memory_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--lease-memory", "0")["leases"]["lease_sheets"] == [0]


def test_host_memory_holds_more_sessions_while_they_pause(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of it is for leases, so that twice as much holds twice as many."""
    asked = ("gemma-3-27b", "--pool", "64GiB")
    assert run_json(capsys, *asked)["leases"]["host_sessions"] is None
    held = [run_json(capsys, *asked, "--host-memory", size)["leases"]["host_sessions"] for size in ("60GiB", "120GiB")]
    assert 0 < held[0] <= 30 * GIB // run_json(capsys, *asked)["leases"]["session_bytes"] + 1
    assert held[1] - 2 * held[0] in (0, 1)
    text, _ = run_text(capsys, "plan", *asked, "--host-memory", "60GiB")
    assert f"{held[0]} more in host memory, while they pause" in text


def test_every_stage_has_its_lease_memory(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(
        capsys, "qwen3-next-80b-a3b", "--pool", "64GiB", "--pipeline-parallel", "2", "--lease-memory", "20GiB"
    )
    assert [stage["lease_sheets"] for stage in data["stages"]] == data["leases"]["lease_sheets"]
    assert all(0 <= 20 * GIB - stage["lease_bytes"] < stage["sheet_bytes"] for stage in data["stages"])


def test_a_saved_plan_keeps_its_lease_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    made = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--lease-memory", "5GiB", "--output", path)
    assert run_json(capsys, path)["leases"] == made["leases"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lease-memory", "20KiB"], "--lease-memory 20.00 KiB is less than one sheet of 16.25 MiB: give at least"),
        (["--lease-memory", "viel"], "'viel' is not a size in bytes"),
        (["--workload", f"{AGENTS},pause=1s/10s"], "pause=1s/10s needs a ttl"),
        (["--workload", "prompt=1/2,output=1/2,ttl=5m"], "ttl=5m needs sessions"),
        (["--workload", f"{AGENTS},pause=10s/1s,ttl=5m"], "pause='10s/1s' is not p50/p95"),
        (["--workload", f"{AGENTS},ttl=bald"], "'bald' is not a time: write it like 90s, 5m or 1h"),
        (["--workload", f"{AGENTS},ttl=0s"], "'0s' is not a time"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "plan", "gemma-3-27b", "--pool", "8GiB", *arguments)


def test_lease_memory_larger_than_the_pool_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the largest that would; with that it fits."""
    asked = ("plan", "gemma-3-27b", "--pool", "8GiB", "--max-length", "32k")
    _, complaint = run_text(capsys, *asked, "--lease-memory", "9GiB", code=3)
    assert "there are 504 (8.00 GiB), and 567 are for leases: lower --lease-memory to 5452595200 or raise" in complaint
    run_text(capsys, *asked, "--lease-memory", "5452595200")


def test_models_whose_prefixes_cannot_be_reused_have_no_lease_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What an encoder's layers keep depends on more than the tokens. The example of docs/models.md has one."""
    example = (Path(__file__).parents[3] / "docs" / "models.md").read_text().split("```json\n")[1].split("```")[0]
    (tmp_path / "shape.json").write_text(example)
    asked = (str(tmp_path / "shape.json"), "--pool", "8GiB")
    assert run_json(capsys, *asked)["leases"] is None
    assert "no prefix can be leased; leave it out" in refused(capsys, "plan", *asked, "--lease-memory", "1GiB")


def test_a_workload_with_a_ttl_becomes_a_number_of_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """More lease memory and longer pauses beyond the lease both allow more agents; none holds more than its memory."""
    asked = ("gemma-3-27b", "--pool", "64GiB", "--workload")

    def agents(spec: str, *more: str) -> dict[str, float]:
        served: dict[str, float] = run_json(capsys, *asked, f"{AGENTS},{spec}", *more)["served"]
        return served

    short, long = agents("pause=1s/10s,ttl=5m"), agents("pause=10m/20m,ttl=5m")
    assert (short["expired"], long["expired"]) == (0.0, pytest.approx(0.95, abs=0.05))
    assert 0 < short["users"] < long["users"]
    assert short["leased"] == short["users"]
    assert long["leased"] < long["users"]
    assert agents("ttl=5m")["users"] == short["users"]
    assert agents("ttl=5m", "--lease-memory", "10GiB")["users"] < short["users"]
    assert agents("ttl=5m", "--lease-memory", "0")["users"] == 0
    text, _ = run_text(capsys, "plan", *asked, f"{AGENTS},pause=1s/10s,ttl=5m")
    assert f"{short['users']} agents, 1 of them being computed at once, {short['leased']} with a lease" in text
