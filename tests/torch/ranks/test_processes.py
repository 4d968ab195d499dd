"""Several processes of one model: the tokens of one process, whatever the engine does on the way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.build.engine import BuiltEngine
from quire.build.ranks import RankZero
from quire.cache.audit import audit
from quire.core.request import Request
from quire.ranks.group import RankLost
from quire.worker.support.tiny import tiny_config
from rank_traffic import Seen, build, drive, few_requests, happens, prompt_of
from tiny_folder import save_folder

pytestmark = pytest.mark.servers

WAYS = [
    ("llama", 2, 1),
    ("qwen3_next", 1, 2),
    pytest.param("gemma3_text", 2, 1, marks=pytest.mark.soak),
    pytest.param("qwen3_next", 2, 2, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("name", "ranks", "stages"), WAYS)
def test_processes_generate_what_one_does(name: str, ranks: int, stages: int, tmp_path: Path) -> None:
    """Greedy and seeded, with prefix hits, preemption or compaction, cancellation, drafts, leases and prefixes from
    host memory. Tables that miss a change, or a token that a rank draws by itself, would show."""
    folder, found = save_folder(tmp_path, tiny_config(name)), []
    for plan_ranks, plan_stages in ((1, 1), (ranks, stages)):
        built = build(folder, plan_ranks, plan_stages, seen := Seen())
        try:
            found.append(drive(built.engine, few_requests()))
        finally:
            built.close()
        assert happens(name, plan_stages) <= set(+seen.events), seen.events
    assert found[0] == found[1]


@pytest.mark.soak
def test_two_ranks_find_on_disk_what_two_ranks_have_written(tmp_path: Path) -> None:
    """In an earlier life. Where a part of one rank is damaged, the prefix is computed again; tokens are always those of
    one rank. Red if a rank read the part of another, or a load took what is not whole."""
    model, disk, found = tmp_path / "model", tmp_path / "disk", []
    model.mkdir()
    save_folder(model, tiny_config("llama"))
    for ranks in (1, 2, 2):
        built = build(model, ranks, 1, Seen(), disk if ranks > 1 else None)
        try:
            found.append(drive(built.engine, few_requests()))
        finally:
            built.close()
        if len(found) == 2:
            one_rank, _ = disk.iterdir()
            for part in sorted(one_rank.glob("*.record"))[::4]:
                part.write_bytes(part.read_bytes()[:-1])
    assert found == found[:1] * 3
    assert built.stack is not None
    assert built.stack.counters["loads"] > 0
    assert built.stack.counters["failed_loads"] > 0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BuiltEngine, RankZero]]:
    built = build(save_folder(tmp_path, tiny_config("llama")), 2, 1, Seen())
    assert isinstance(built.ranks, RankZero)
    try:
        yield built, built.ranks
    finally:
        built.close()


def test_a_rank_that_is_killed_ends_its_requests_with_its_name(pair: tuple[BuiltEngine, RankZero]) -> None:
    """The request that runs ends with the reason; the queue of the engine stays, and its books balance. Nothing of the
    group is left."""
    built, ranks = pair
    streams = [built.engine.submit(Request(f"r{number}", prompt_of(number), 60)) for number in range(8)]
    for _ in range(12):
        built.engine.step()
    (process,) = [link.process for link in ranks.group.links]
    assert process is not None
    process.send_signal(signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 of 2 is lost: it was killed by SIGKILL"):
        built.engine.drain()
    failed = [stream for stream in streams if stream.failure]
    assert all("rank 1 of 2 is lost" in stream.failure for stream in failed)
    assert 0 < len(failed) < len(streams)
    assert process.wait(60) == -signal.SIGKILL
    for memory in built.engine.scheduler.memories:
        audit(memory, {})
