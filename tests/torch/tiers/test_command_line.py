"""Tiers as users ask for them: options, what is refused, and a second run that goes on from the first one's files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pytest

from doubles import Sieve
from quire.build.identity import PIECE_BYTES, weights_identity
from quire.build.tiers import describe, layout_of, stores_of
from quire.cli.flags import run_options
from quire.cli.main import build_parser, main
from quire.core.errors import DoesNotFit
from quire.fetch.default import fetch_default
from quire.movers.host import check_budget
from quire.options.tiers import Tiers
from quire.tiers.guarded import GuardedTier
from tiny_models import plan_of


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", "--prompt", "x", *arguments])


def tiers_of(*arguments: str) -> Tiers:
    return run_options(parsed(*arguments)).tiers


def test_options_say_where_prefixes_live() -> None:
    tiers = tiers_of("--host-memory", "2GiB", "--disk", "some/where:5GB", "--remote", "redis://host")
    assert tiers == Tiers(2 << 30, Path("some/where"), 5 * 10**9, "redis://host")
    assert tiers_of("--disk", "cache") == Tiers(disk=Path("cache"))
    assert tiers_of().is_empty


@pytest.mark.parametrize("wrong", [("--disk", ":5GiB"), ("--disk", "cache:much"), ("--host-memory", "none")])
def test_what_is_no_size_or_folder_is_refused(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*wrong)
    assert wrong[0] in capsys.readouterr().err


def test_host_memory_that_is_not_there_is_refused_before_it_is_allocated() -> None:
    check_budget(100, 100, "--host-memory")
    with pytest.raises(DoesNotFit, match=r"--host-memory 2.00 GiB is more than the 1.00 GiB"):
        check_budget(2 << 30, 1 << 30, "--host-memory")


def test_the_report_at_the_start_counts_what_stays_warm_in_tiers_that_work(tmp_path: Path) -> None:
    """Sessions as long as the longest request: 6 units of 16 tokens, and where they end a window of 19 or its like."""
    plan = plan_of("gemma3_text", batch_tokens=32)
    tiers = Tiers(1 << 20, tmp_path, 1 << 21, f"unix://{tmp_path}/nobody?password=secret", (Sieve(),))
    behind = [GuardedTier(one, layout_of(plan, ""), time.monotonic) for one in stores_of(tiers)]
    for tier in behind:
        tier.mend()
    host, disk, remote, sieve = describe(plan, tiers, behind)
    assert host.startswith("host: 1.00 MiB, ")
    assert "idle sessions of 96 tokens stay warm" in host
    assert disk.startswith("disk: 2.00 MiB, ")
    assert remote.startswith(f"remote: NOT IN USE, unix://{tmp_path}/nobody cannot be reached: ")
    assert "secret" not in remote
    assert sieve.startswith("sieve: READ ONLY, nothing new is kept there: ")
    warm = [int(line.split("; ")[1].split()[0]) for line in (host, disk)]
    assert 0 < 2 * warm[0] <= warm[1]


@pytest.mark.story
def test_weights_that_differ_in_one_byte_have_another_fingerprint(tmp_path: Path) -> None:
    """Wherever it lies: in a piece, at its ends, in another file; and the same weights have the same one."""
    plan = plan_of("llama", batch_tokens=32)
    (tmp_path / "config.json").write_text("{}")
    fingerprints = []
    for changed in (None, None, 0, 5_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 999):
        data = bytearray(PIECE_BYTES + 1_000)
        if changed is not None:
            data[changed] = 1
        (tmp_path / "model.safetensors").write_bytes(data)
        fingerprints.append(layout_of(plan, weights_identity(tmp_path)).fingerprint)
    (tmp_path / "model.safetensors").write_bytes(bytes(PIECE_BYTES + 1_001))
    fingerprints.append(layout_of(plan, weights_identity(tmp_path)).fingerprint)
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == len(fingerprints) - 1


def test_digesting_weights_tells_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(PIECE_BYTES + 1_000))
    told: list[tuple[str, int, int]] = []
    weights_identity(tmp_path, lambda *progress: told.append(progress))
    total = PIECE_BYTES + 1_000
    assert told == [("digest", PIECE_BYTES, total), ("digest", total, total)]


@pytest.mark.parametrize(
    ("tiers", "is_shared"),
    [
        (Tiers(), False),
        (Tiers(host_bytes=1 << 20), False),
        (Tiers(disk=Path("folder")), True),
        (Tiers(host_bytes=1 << 20, remote="redis://host"), True),
    ],
)
def test_only_records_that_leave_the_process_must_tell_whose_they_are(tiers: Tiers, is_shared: bool) -> None:
    assert tiers.is_shared is is_shared


@pytest.mark.network
def test_a_second_run_goes_on_from_the_files_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_default()
    prompt = "One, two, three, four, five. " * 20
    said, files = [], []
    for _ in range(2):
        options = ["--max-tokens", "4", "--max-length", "512", "--pool", "64MiB", "--disk", f"{tmp_path}:1GiB"]
        assert main(["generate", "--prompt", prompt, *options]) == 0
        said.append(capsys.readouterr().out)
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.record")})
    assert said[0] == said[1]
    assert len(files[0]) >= 2
    assert all(files[1][path] > time for path, time in files[0].items()), "each was read, and so is newer"
