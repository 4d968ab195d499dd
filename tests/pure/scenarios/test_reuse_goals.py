"""The table and the goals of bench/reuse.py, and how a run goes on."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peer_environment
import reuse_peer
import reuse_rows
from reuse import ordered, parser_of, play_all, read_rows, write_rows
from reuse_drive import drive
from reuse_goals import CAP, Cell, Goal, cells_of, goals, print_report, table
from reuse_lru import LruServer
from reuse_pools import cost_of, kinds_of, plan_of, working_set_bytes
from reuse_rows import COLUMNS, POOLS, Case, Row, play_case
from reuse_workloads import Work, make_work, work_of

ROW = Row("waves", "gemma-3-27b", 0, "5", 10**9, False, 2 * 10**10, 1000, 0.8)


def cell(quire: float, *others: float | None, **changes: Any) -> Cell:
    found = dict(zip(COLUMNS, (quire, *others), strict=False))
    row = replace(ROW, found=found, **changes)
    return Cell(row.workload, row.model, row.pool, (row,))


def named(found: list[Goal], begin: str) -> Goal:
    (goal,) = [one for one in found if one.name.startswith(begin)]
    return goal


def test_a_ratio_is_with_the_best_baseline_that_starts() -> None:
    assert cell(0.3, 0.1, 0.2, 0.15).ratio == pytest.approx(1.5)
    assert cell(0.3, 0.1, None, 0.15).ratio == pytest.approx(2.0)
    assert cell(0.3).ratio is None


def test_a_ratio_with_next_to_nothing_is_capped() -> None:
    """Nothing found by both is equal; nothing found by one of them is ten times or a tenth."""
    assert [cell(*pair).ratio for pair in ((0, 0), (0.1, 0), (0.1, 0.001), (0, 0.1))] == [1, CAP, CAP, 1 / CAP]


def test_a_cell_is_the_mean_over_its_seeds() -> None:
    """Best of the means, not mean of the best; a column that does not start with some seed has no mean."""
    rows = [
        replace(ROW, seed=0, found={"quire": 0.2, "lru": 0.3, "vllm": 0.1}),
        replace(ROW, seed=1, found={"quire": 0.4, "lru": 0.1, "vllm": None}),
    ]
    (one,) = cells_of(rows)
    assert one.found("quire") == pytest.approx(0.3)
    assert one.best == pytest.approx(0.2)
    assert one.found("vllm") is None


def test_one_cell_below_is_one_too_many() -> None:
    good, bad = cell(0.98, 1.0), cell(0.979, 1.0)
    assert named(goals([good] * 9), "≥ 0.98").is_reached
    assert not named(goals([*[good] * 9, bad]), "≥ 0.98").is_reached


def test_nine_of_ten_cells_must_be_as_good_as_the_best() -> None:
    good, bad = cell(0.5, 0.5), cell(0.499, 0.5)
    assert named(goals([*[good] * 9, bad]), "≥ 1.0").is_reached
    assert not named(goals([*[good] * 8, bad]), "≥ 1.0").is_reached


def test_the_mean_gain_counts_small_pools_and_tells_what_was_capped() -> None:
    """Ratios 2, 0.5 and a capped 10 at 5 %: their geometric mean is the cube root of 10, and 1 without the last."""
    cells = [cell(0.2, 0.1), cell(0.1, 0.2), cell(0.1, 0.0), cell(0.1, 0.9, pool="100")]
    goal = named(goals(cells), "geometric mean")
    assert goal.is_reached
    assert goal.figure.startswith(f"{10 ** (1 / 3):.3f}; 1.000 without 1 of 3")
    plain = named(goals([cell(0.104, 0.1, model="llama-3.1-8b")]), "geometric mean")
    assert not plain.is_reached


@pytest.mark.parametrize(
    ("model", "share"), [("llama-3.1-8b", 0.95), ("gemma-3-27b", 0.95), ("nemotron-3-nano-30b", 0.9)]
)
def test_without_a_limit_most_of_the_ceiling_is_found(model: str, share: float) -> None:
    for found, is_reached in ((share, True), (share - 0.001, False)):
        goal = named(goals([cell(0.8 * found, model=model, pool="unlimited")]), f"≥ {share:.0%} of the ceiling")
        assert goal.is_reached is is_reached


def test_split_chunks_are_counted_in_large_pools() -> None:
    split = cell(0.5, 0.5, pool="100", prefill_seconds=1.03, unsplit_seconds=1.0)
    whole = cell(0.5, 0.5, pool="unlimited", prefill_seconds=1.0, unsplit_seconds=1.0)
    small = cell(0.5, 0.5, pool="5", prefill_seconds=9.0, unsplit_seconds=1.0)
    assert not named(goals([split]), "prefill").is_reached
    assert named(goals([split, whole, small]), "prefill").is_reached


def test_the_table_says_what_lost_and_what_did_not_start() -> None:
    cells = [cell(0.25, 0.5, None, missed={"missed_tail": 100}, is_least=True), cell(0.5, 0.25, 0.1, pool="20")]
    head, _, first, second = table(cells, ("quire", "lru", "vllm"))
    assert head.endswith("| Quire ÷ best | prefill | missed_tail |")
    assert "| 5 % (least) | 1.00 | 80.0 | 25.0 | 50.0 | – | **0.500** |" in first
    assert first.endswith("| 10.0 |")
    assert "| 2.000 |" in second


def test_a_report_tells_of_ceilings_that_say_little() -> None:
    said: list[str] = []
    assert not print_report(
        [replace(ROW, ceiling=0.04, found={"quire": 0.01, "lru": 0.02})], ("quire", "lru"), said.append
    )
    assert any("a ceiling of 4.0% says little" in line for line in said)
    assert any(line.startswith("MISSED") for line in said)


def test_rows_are_written_and_read_as_they_are(tmp_path: Path) -> None:
    rows = [replace(ROW, pool=pool, found={"quire": 0.5, "vllm": None}, took={"quire": 1.5}) for pool in POOLS]
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.json"]
    assert ordered(reversed(rows)) == rows


def test_only_what_is_missing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def played(row: Row, columns: list[str], path: Path) -> Row:
        del path
        asked.append((row.pool, columns))
        return replace(row, found={**row.found, **dict.fromkeys(columns, 0.5)})

    monkeypatch.setattr(reuse_rows, "played", played)
    monkeypatch.setattr(reuse_rows, "rows_of", lambda _, pools, __: [replace(ROW, pool=pool) for pool in pools])
    before = {"5": replace(ROW, found={"quire": 0.1, "vllm": None})}
    rows = play_case(Case("waves", "gemma-3-27b", 0), ["5", "20"], ["quire", "lru", "vllm"], Path(), before, ["quire"])
    assert asked == [("5", ["quire", "lru"]), ("20", ["quire", "lru", "vllm"])]
    assert rows[0].found == {"quire": 0.5, "lru": 0.5, "vllm": None}


def test_a_run_without_the_trace_leaves_the_conversation_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And plays one cell from beginning to end, in a process of its own."""
    given = "--workload conversation history --model llama-3.1-8b --pool 100 --seeds 1 --jobs 1 --columns quire lru"
    options = parser_of().parse_args(
        [*given.split(), "--trace", str(tmp_path / "none"), "--json", str(tmp_path / "rows")]
    )
    (row,) = play_all(options, {})
    assert "conversation is left out" in capsys.readouterr().err
    assert read_rows(tmp_path / "rows") == [row]
    assert 0.9 < row.found["lru"] < 1
    assert 0.9 < row.found["quire"] < 1


# ── the peer ──────────────────────────────────────────────────────────────


def test_layers_for_the_peer_have_the_bytes_of_the_plan() -> None:
    plan = plan_of("qwen3-next-80b-a3b", 4000, 1 << 34)
    full, state = reuse_peer.layers_of(kinds_of(plan), exports=False)
    own = {kind.kind.kind: kind for kind in kinds_of(plan)}
    assert full == {"kind": "full", "heads": 1, "width": 256, "count": 12}
    assert 4 * full["heads"] * full["width"] * full["count"] == own["full"].token_bytes
    assert state["bytes"] * state["count"] == own["state"].fixed_bytes
    window = reuse_peer.layers_of(kinds_of(plan_of("gemma-3-27b", 4000, 1 << 34)), exports=False)[1]
    assert (window["window"], window["count"]) == (1024, 52)


class FakeProcess:
    """Computes each prompt in one step and answers it with one token, whoever else is there."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if "layers" in question:
            self.opened = question
            return {"refused": "too small"} if question["pool"] < 100 else {"blocks": 7, "block_tokens": 16}
        came = question["submit"]
        for _, prompt, packed in came:
            assert len(np.frombuffer(base64.b64decode(packed), np.int32)) == prompt + 1
        steps = [[place, 16, prompt - 16] for place, prompt, _ in came]
        return {"steps": steps, "hits": [[one[0], 16] for one in came], "ended": [one[0] for one in came]}


def test_a_peer_is_asked_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProcess()
    monkeypatch.setattr(reuse_peer, "process", lambda: fake)
    server = reuse_peer.PeerServer([], 1000, 50)
    assert fake.opened["longest"] == 50
    assert server.schedule() is None
    server.submit(3, np.arange(41, dtype=np.int32), 40)
    batch = server.schedule()
    assert batch is not None
    assert (batch.places, batch.starts, batch.counts, batch.samples) == ((3,), (16,), (24,), 1)
    assert server.complete(batch) == [3]
    assert server.hits() == {3: 16}
    with pytest.raises(reuse_peer.Refused, match="too small"):
        reuse_peer.PeerServer([], 99, 50)


@pytest.mark.skipif(
    not peer_environment.STAMP.is_file(), reason="vLLM is not installed: python bench/peer_environment.py"
)
def test_with_full_attention_vllm_finds_what_the_list_of_pages_finds() -> None:
    """One list, one kind: both are least-recently-used pages of 16 tokens, in a pool where much is evicted."""
    work = _first(make_work("nested", 0, Path()), 60)
    plan = plan_of("llama-3.1-8b", work.longest, 1 << 34)
    pool = working_set_bytes(plan, work) // 2
    plan = plan_of("llama-3.1-8b", work.longest, pool)
    cost = cost_of("llama-3.1-8b", plan)
    page_bytes = kinds_of(plan)[0].page_bytes
    theirs = drive(reuse_peer.PeerServer(kinds_of(plan), pool, work.longest), cost, work)
    ours = drive(LruServer(kinds_of(plan), (pool // page_bytes - 1) * page_bytes), cost, work)
    assert 0 < theirs.hit_tokens == ours.hit_tokens


def _first(work: Work, count: int) -> Work:
    return work_of(type(work.trace)("some", work.trace.requests[:count]))
