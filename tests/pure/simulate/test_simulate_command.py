"""`quire simulate`."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command import refused, run_text
from quire.cli.main import build_parser
from quire.cli.simulate import progress_bar

SMALL = ("simulate", "llama-3.2-1b", "--device", "h200", "--requests", "8")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    out, _ = run_text(capsys, *SMALL, "--json", *arguments)
    runs: list[dict[str, Any]] = json.loads(out)["runs"]
    return runs


def test_equal_seeds_give_equal_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    one, same, other = (run_text(capsys, *SMALL, "--json", "--seed", seed)[0] for seed in ("1", "1", "2"))
    assert one == same
    assert one != other


def test_the_report_is_on_standard_output_and_nothing_else_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_text(capsys, *SMALL)
    assert err == ""
    for words in ("requests finished", "ms to first token, p50 / p95 / p99", "unlimited cache", "full"):
        assert words in out


def test_compare_changes_one_setting_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    asked, narrow, quick = run_json(capsys, "--compare", "batch-tokens=64", "--compare", "bandwidth=48000")
    assert [one["setting"] for one in (asked, narrow, quick)] == ["as asked", "batch-tokens=64", "bandwidth=48000"]
    assert narrow["steps"] > asked["steps"]
    assert narrow["cost"] == asked["cost"] != quick["cost"]
    assert quick["seconds_between_tokens"]["p50"] < asked["seconds_between_tokens"]["p50"]


def test_a_comparison_is_the_run_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    (direct,) = run_json(capsys, "--trace", "synthetic:bursts", "--policy", "fair", "--kv-dtype", "fp8")
    *_, compared = run_json(capsys, "--trace", "synthetic:bursts", "--policy", "fair", "--compare", "kv-dtype=fp8")
    assert {**direct, "setting": ""} == {**compared, "setting": ""}


def test_the_policy_decides_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--trace", "synthetic:bursts", "--requests", "60", "--max-requests", "4")
    waits = [
        {name: tenant["seconds_to_first_token"]["p95"] for name, tenant in run["tenants"].items()}
        for run in run_json(capsys, *few, "--compare", "policy=first-come")
    ]
    by_priority, first_come = waits
    assert by_priority["steady"] < first_come["steady"]
    assert by_priority["crowd"] > first_come["crowd"]


def test_comparisons_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, *SMALL, "--compare", "policy=fair", "--compare", "model=llama-3.2-3b")
    head = next(line for line in out.splitlines() if "as asked" in line)
    assert head.split()[-2:] == ["policy=fair", "model=llama-3.2-3b"]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("batch-tokens", "batch-tokens=2048"),
        ("colour=red", "batch-tokens=2048"),
        ("json=1", "batch-tokens=2048"),
        ("batch-tokens=many", "'many' is not a number of tokens"),
        ("policy=mine", "first-come, priority, fair"),
        ("bandwidth=0", "at least 1e-06"),
        ("memory-fraction=most", "could not convert"),
        ("trace=nowhere", "no such file"),
    ],
)
def test_a_comparison_that_is_no_setting_is_refused(
    capsys: pytest.CaptureFixture[str], setting: str, problem: str
) -> None:
    assert problem in refused(capsys, *SMALL, "--compare", setting)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--trace", "nowhere.jsonl"), "no such file"),
        (("--trace", "synthetic:poems"), "synthetic:chat"),
        (("--rate", "0"), "out of range"),
        (("--rate", "often"), "not a number"),
        (("--requests", "0"), "out of range"),
        (("--active-share", "1.5"), "out of range"),
        (("--plot", "picture.txt"), ".svg or .png"),
    ],
)
def test_what_cannot_be_understood_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], problem: str
) -> None:
    assert problem in refused(capsys, *SMALL, *arguments)


def test_a_pool_without_a_device_needs_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --bandwidth and --flops, or" in refused(capsys, "simulate", "llama-3.2-1b", "--pool", "1GiB")
    assert "'h300' is not known: choose h" in refused(capsys, "simulate", "llama-3.2-1b", "--device", "h300")
    given = ("--bandwidth", "3000", "--flops", "500", "--requests", "3")
    assert "requests finished" in run_text(capsys, "simulate", "llama-3.2-1b", "--pool", "1GiB", *given)[0]


@pytest.mark.story
def test_a_seed_may_be_0_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "simulate", "llama-3.2-1b", "--device", "h200", "--seed", "-1")
    assert "'-1' is out of range: give 0 to 1,073,741,824" in told


def test_a_plan_that_does_not_fit_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_text(capsys, "simulate", "llama-3.3-70b", "--device", "l4", code=3)
    assert (out, err.count("\n")) == ("", 1)


def test_a_saved_plan_is_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run_text(capsys, "plan", "llama-3.2-1b", "--pool", "1GiB", "--output", str(path))
    assert "the model that it was made from" in refused(capsys, "simulate", str(path), "--device", "h200")


def test_ranks_and_stages_are_simulated_too(capsys: pytest.CaptureFixture[str]) -> None:
    alone, ranks, stages = run_json(capsys, "--compare", "tensor-parallel=4", "--compare", "pipeline-parallel=2")
    assert (alone["devices"], ranks["devices"], stages["devices"]) == (1, 4, 2)
    assert ranks["seconds_between_tokens"]["p50"] < alone["seconds_between_tokens"]["p50"]
    assert [line["stage"] for line in stages["memory"]] == [0, 1]


def test_a_trace_of_a_file_is_played_at_a_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{second:02}.0,100,5" for second in range(20)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    slow, fast = run_json(capsys, "--trace", str(path), "--compare", "rate=10")
    assert slow["virtual_seconds"] == pytest.approx(7, abs=0.2)
    assert fast["virtual_seconds"] == pytest.approx(0.7, abs=0.2)
    assert slow["trace"] == "trace.csv"


def test_a_plot_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    run_text(capsys, *SMALL, "--plot", str(path), "--compare", "policy=fair")
    assert path.read_text().startswith("<?xml")


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, seen in ((Terminal(), "5 of 10 requests"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        show = progress_bar("as asked")
        show(5, 10)
        show(5, 10)
        assert stream.getvalue().count("requests") == (1 if seen else 0)
        assert seen in stream.getvalue()


def test_every_option_of_simulate_is_documented() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text()
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    own, planning = ({o for a in commands.choices[c]._actions for o in a.option_strings} for c in ("simulate", "plan"))
    assert not {option for option in own - planning if f"`{option}" not in text}


def test_every_field_of_the_simulation_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "simulate.md").read_text()
    (run,) = run_json(capsys)
    tenant = next(iter(run["tenants"].values()))
    fields = {*run, *run["cost"], *run["memory"][0], *tenant, *run["seconds_to_first_token"]}
    assert not {field for field in fields if f"`{field}`" not in text}


ROOT = Path(__file__).parents[3]
MOONCAKE = ROOT.parent / "shared" / "traces" / "mooncake_fast25_conversation.jsonl.gz"


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the real trace is not here")
def test_the_start_of_the_real_trace_plays(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(
        capsys, "simulate", "llama-3.2-1b", "--device", "h200", "--trace", str(MOONCAKE), "--requests", "50", "--json"
    )
    (found,) = json.loads(out)["runs"]
    assert found["finished"] == 50
    assert 0 < found["hit_rate"] <= found["hit_rate_ceiling"]
