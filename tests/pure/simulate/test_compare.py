"""`quire plan --compare-devices`: what each configuration holds, and how fast it would be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from command import refused, run_json, run_text
from quire.core.dtypes import DType
from quire.models.read import read_model
from quire.options.run import RUN_KV_DTYPES
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.devices import DEVICES, device_bytes
from quire.simulate.compare import COMPARED_KV, COMPARED_RANKS, TRIED, compare

PAGE = Path(__file__).parents[3] / "docs" / "plan.md"
MODEL = read_model("llama-3.1-8b")


def configurations(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    return run_json(capsys, "llama-3.1-8b", *arguments, code=code)


def test_a_configuration_holds_what_its_plan_admits_and_not_one_request_more() -> None:
    found, left_out = compare(MODEL, Settings(), ["l40s", "h200"], 100_000, None)
    assert not left_out
    assert len(found) == 4
    for one in found:
        settings = Settings(max_length=100_000, kv_dtype=DType(one.kv_dtype))
        plan = make_plan(MODEL, settings, Budget(device_bytes(one.device)))
        assert one.requests == bound.concurrency(plan, 100_000)
        assert 0.5 < one.fill <= 1


def test_a_target_is_held_by_as_many_replicas_as_it_needs_which_are_as_many_times_as_fast() -> None:
    alone, _ = compare(MODEL, Settings(), ["l40s"], 32_768, None)
    together, _ = compare(MODEL, Settings(), ["l40s"], 32_768, 100)
    for one in together:
        (same,) = [other for other in alone if other.kv_dtype == one.kv_dtype]
        assert (one.replicas - 1) * one.requests < 100 <= one.replicas * one.requests
        assert one.devices == one.replicas * one.ranks
        assert one.tokens_per_second == pytest.approx(one.replicas * same.tokens_per_second)
        assert one.first_token_seconds == same.first_token_seconds


def test_faster_devices_are_faster_and_the_fewest_devices_come_first() -> None:
    found, _ = compare(MODEL, Settings(), ["l40s", "h100", "h200"], 32_768, 300)
    assert [one.devices for one in found] == sorted(one.devices for one in found)
    first = {one.device: one.first_token_seconds for one in found if one.kv_dtype == "bf16"}
    assert first["l40s"] > first["h100"] >= first["h200"]


def test_only_what_quire_runs_is_compared() -> None:
    assert set(COMPARED_KV) <= set(RUN_KV_DTYPES)
    assert COMPARED_RANKS == (1,)
    assert set(TRIED) <= set(DEVICES)
    found, left_out = compare(MODEL, Settings(), ["a100-80gb"], 8192, None)
    assert [one.kv_dtype for one in found] == ["bf16"]
    assert [(one.kv_dtype, one.why) for one in left_out] == [("fp8", "the hardware of a100-80gb does not convert fp8")]


def test_the_command_prints_a_table_and_why_others_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "plan", "gemma-3-27b", "--compare-devices", "l40s,H200", "--target-length", "32k")
    assert out.count("h200") == 2
    assert "left out: l40s, bf16: weights and run-time memory take" in out
    assert "requests of 32,768 tokens" in out


def test_the_table_in_the_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = re.findall(r"^\$ quire (plan .+--compare.+)\n((?:.+\n)+?)```", PAGE.read_text(), re.MULTILINE)[0]
    out, _ = run_text(capsys, *command.split())
    assert out == shown


def test_the_json_has_the_same_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    data = configurations(capsys, "--compare-devices", "h100", "--target-requests", "7")
    assert (data["schema"], data["length"], data["target_requests"]) == ("quire.devices/1", 8192, 7)
    assert {one["kv_dtype"] for one in data["configurations"]} == {"bf16", "fp8"}
    assert all(one["devices"] == one["replicas"] * one["ranks"] for one in data["configurations"])
    assert json.dumps(data)


def test_all_stands_for_every_device_with_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    data = configurations(capsys, "--compare-devices", "all")
    assert {one["device"] for one in (*data["configurations"], *data["left_out"])} == set(TRIED)


def test_nothing_that_fits_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run_text(capsys, "plan", "llama-3.1-405b", "--compare-devices", "l4", code=3)
    assert err.startswith("quire: none of these devices holds a request of 8,192 tokens")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--compare-devices", "h300"], "'h300' is not known"),
        (["--compare-devices", ""], "is not known"),
        (["--compare-devices", "h200", "--device", "h100"], "leave out --device"),
        (["--compare-devices", "h200", "--kv-dtype", "fp8"], "leave out --kv-dtype"),
        (["--compare-devices", "h200", "--tensor-parallel", "2"], "leave out --tensor-parallel"),
        (["--compare-devices", "h200", "--target-length", "1m"], "is beyond the 131,072"),
    ],
)
def test_bad_comparisons_are_refused_in_one_line(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "plan", "llama-3.1-8b", *given)
