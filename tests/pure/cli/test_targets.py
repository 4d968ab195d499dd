"""`quire plan --target-…`: how large a pool, and how many devices, for N requests of a given length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import run_json, run_text
from quire.core.units import format_bytes


@pytest.mark.story
@pytest.mark.parametrize(
    ("model", "budget", "code", "answer", "alone"),
    [
        ("gemma-3-27b", ["--device", "h100"], 0, "need {devices} devices (7 as Quire runs today)", "fits"),
        ("gemma-3-27b", ["--pool", "10GiB"], 0, "need a pool of {pool} per rank", "fits"),
        ("gemma-3-27b", ["--pool", "20MiB"], 0, "need a pool of {pool} per rank", "DOES NOT FIT"),
        (
            "llama-3.1-405b",
            ["--device", "h100"],
            0,
            "need {devices} devices (Quire cannot run it today)",
            "DOES NOT FIT",
        ),
        ("llama-3.1-405b", ["--memory", "2GiB"], 3, "DO NOT FIT", "DOES NOT FIT"),
    ],
)
def test_the_headline_of_a_target_is_what_it_needs(
    model: str, budget: list[str], code: int, answer: str, alone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not whether an engine fits that nobody asked about: that stands in the line below. The exit code says the same
    as the headline."""
    asked = (model, *budget, "--target-length", "32k", "--target-requests", "40")
    data = run_json(capsys, *asked, code=code)["target"]
    told = answer.format(devices=(data["fleet"] or {}).get("devices"), pool=format_bytes(data["pool_bytes"]))
    report, complaint = run_text(capsys, "plan", *asked, code=code)
    first, second = report.splitlines()[:2]
    assert first.endswith(f": 40 requests of 32,768 tokens {told}")
    assert second.endswith(f"; one engine of 1 device {alone}")
    held = (
        "holds even one request of 32,768 tokens of meta-llama-3.1-405b on such devices; of one: weights and run-time"
    )
    assert f"quire: no number of ranks and stages that we try {held}" in complaint if code else not complaint


@pytest.mark.story
def test_a_target_that_nothing_holds_does_not_fit_even_where_an_engine_for_shorter_requests_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layer = {"kind": "full", "kv_heads": 1, "head_dim": 128}
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps({"quire_shape": 1, "name": "narrow", "max_length": 1 << 23, "layers": [layer]}))
    asked = ("plan", str(shape), "--memory", "4GiB", "--target-length", "8m", "--target-requests", "1")
    report, complaint = run_text(capsys, *asked, code=3)
    first, second = report.splitlines()[:2]
    assert first.endswith(": 1 request of 8,388,608 tokens DOES NOT FIT")
    assert second.endswith("; one engine of 1 device fits")
    assert complaint.endswith("holds even one request of 8,388,608 tokens of narrow on such devices\n")


def test_the_reverse_question_is_answered_by_the_same_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    """The pool it names holds the target, and one sheet fewer does not."""
    target = ("--target-length", "32k", "--target-requests", "40")
    answer = run_json(capsys, "gemma-3-27b", "--device", "h100", *target)["target"]
    fleet, servers = answer["fleet"], answer["servers"]
    assert (servers["devices"], servers["requests_each"]) == (7, 6), "seven servers of one device, six requests each"
    options = (
        "--tensor-parallel",
        str(fleet["tensor_parallel"]),
        "--pipeline-parallel",
        str(fleet["pipeline_parallel"]),
    )
    held = run_json(capsys, "gemma-3-27b", "--device", "h100", "--max-length", "32k", "--lengths", "32k", *options)
    assert held["concurrency"]["32768"] == fleet["requests_each"]
    assert (fleet["replicas"] - 1) * fleet["requests_each"] < 40 <= fleet["replicas"] * fleet["requests_each"]
    sheets = answer["sheets"][0]
    enough = run_json(capsys, "gemma-3-27b", "--sheets", str(sheets), "--lengths", "32k")
    short = run_json(capsys, "gemma-3-27b", "--sheets", str(sheets - 1), "--lengths", "32k")
    assert enough["concurrency"]["32768"] >= 40 > short["concurrency"]["32768"]
