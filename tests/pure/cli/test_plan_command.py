"""`quire plan` as a user meets it: exit codes, reports, the documented JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quire
from command import run_json, run_text
from quire.cli.main import main
from quire.core.units import GIB
from quire.models.catalogue import catalogue_entry
from quire.planner.document import load

REQUIRED = {
    "schema", "model", "fingerprint", "fits", "sheet_bytes", "sheets", "pool_bytes", "kinds", "max_length",
    "requested_max_length", "concurrency", "concurrency_with_prefill", "waste", "demand", "match_unit_tokens",
    "checkpoint_bytes", "ledger", "ranks", "bottleneck_rank", "index_view",
}  # fmt: skip
REQUIRED_OF_A_KIND = {
    "name", "kind", "layers", "page_tokens", "page_bytes", "pages_per_sheet", "window", "fixed_bytes",
    "bytes_per_token",
}  # fmt: skip


def test_the_json_has_every_documented_field(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "gemma-3-27b", "--device", "h200", "--lengths", "513,1000,5001")
    assert set(data) >= REQUIRED
    assert all(set(kind) >= REQUIRED_OF_A_KIND for kind in data["kinds"])
    assert data["schema"] == "quire.plan/3"
    for table in ("concurrency", "concurrency_with_prefill", "waste", "demand"):
        assert list(data[table]) == ["513", "1000", "5001"]
    names = [kind["name"] for kind in data["kinds"]]
    assert names == ["full", "window-1024"]
    assert set(data["demand"]["5001"]) == set(names)
    assert data["pool_bytes"] == data["sheets"] * data["sheet_bytes"]
    assert data["requested_max_length"] is None


def test_the_json_tables_agree_with_the_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma-3-27B at 5,001 tokens: 313 pages of 16 tokens for full layers, 65 for a window of 1,024 per table."""
    data = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--page-tokens", "16", "--lengths", "5001")
    full, window = data["kinds"]
    assert data["demand"]["5001"] == {"full": 313 * full["groups"], "window-1024": 65 * window["groups"]}
    assert (full["bytes_per_token"], full["fixed_bytes"]) == (81_920, 0)
    assert (window["bytes_per_token"], window["fixed_bytes"]) == (0, 1024 * 52 * 8192)


@pytest.mark.story
def test_one_sheet_is_no_sheets(capsys: pytest.CaptureFixture[str]) -> None:
    _, complaint = run_text(capsys, "plan", "smollm2-135m", "--pool", "100KiB", code=3)
    assert "1 token needs 1 sheet of 360.00 KiB" in complaint
    assert complaint.endswith("raise the pool to 1 sheet\n")
    report, _ = run_text(capsys, "plan", "smollm2-135m", "--sheets", "1", "--explain")
    target, _ = run_text(
        capsys, "plan", "smollm2-135m", "--pool", "1GiB", "--target-length", "1", "--target-requests", "1"
    )
    for said in ("1 sheet of 360.00 KiB, any kind", "chosen     1 sheet\n", "never needs more than 1 sheet ("):
        assert said in report
    assert not re.search(r"\b1 (sheets|requests|devices)", report + target)


def test_the_report_shows_ledger_kinds_waste_and_curve(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_text(capsys, "plan", "gemma-3-27b", "--device", "h200")
    for text in ("Ledger", "weights", "Kinds", "window-1024", "A + B·tokens", "longest length", "waste", "128k", "┃"):
        assert text in out
    assert err == ""


def test_explain_uses_the_models_own_field_names(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "plan", "deepseek-v3.2", "--pool", "64GiB", "--kv-dtype", "fp8", "--explain")
    for text in ("kv_lora_rank 512", "qk_rope_head_dim 64", "index_head_dim 128", "48,068 B"):
        assert text in out


def test_without_a_memory_option_it_plans_for_this_machine_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "plan", "smollm2-135m")
    assert "planned for this machine's" in out


@pytest.mark.story
def test_a_memory_is_an_accelerators_and_main_memory_says_how_it_counts_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same model weighs more on a CPU, and the report tells why; where that is meant, `--memory` counts so too."""
    weights, notes = {}, {}
    places = {
        "here": ["--device", "cpu"],
        "there": ["--memory", "8GiB"],
        "given": ["--device", "cpu", "--memory", "8GiB"],
    }
    for place, options in places.items():
        data = run_json(capsys, "smollm2-135m", *options)
        weights[place] = next(line["bytes"] for line in data["ledger"] if line["name"] == "weights")
        notes[place] = data["notes"]
        accelerator = data["planned_for"].startswith("an accelerator (main memory: --device cpu): 8.00 GiB")
        assert accelerator == (place == "there")
    assert weights["given"] == weights["here"] > weights["there"]
    told = "weights are counted as a CPU holds them: in fp32, laid out anew, a tied head a second time"
    assert told in notes["here"]
    assert told in notes["given"]
    assert not any("weights" in note for note in notes["there"])
    as_bf16 = run_json(capsys, "smollm2-135m", "--device", "cpu", "--dtype", "bf16")["notes"]
    assert "weights are counted as a CPU holds them: in bf16" in as_bf16


def test_one_note_says_how_quantised_weights_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU they are not in fp32, and not as the checkpoint has them either."""
    config = dict(catalogue_entry("llama-3.2-1b").config)
    section = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    for options, rest in (
        (["--device", "cpu"], "fp32, laid out anew"),
        (["--device", "cpu", "--dtype", "bf16"], "bf16"),
    ):
        notes = run_json(capsys, str(tmp_path), "--memory", "8GiB", *options)["notes"]
        (note,) = [note for note in notes if "weights" in note]
        assert note.startswith("quantised weights are counted in their few bits")
        assert f"the rest in {rest}" in note
    notes = run_json(capsys, "smollm2-135m", "--device", "cpu", "--memory", "8GiB", "--weights", "int4")["notes"]
    assert next(note for note in notes if "weights" in note).startswith("quantised weights are counted in int4")


@pytest.mark.parametrize("name", ["GEMMA-3-27B", "google/gemma-3-27b", "gemma_3_27b"])
def test_any_case_of_a_catalogue_name_is_accepted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, name, "--pool", "8GiB")["model"] == "gemma-3-27b"


def test_what_does_not_fit_exits_3_with_json_shortfall_and_offers(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "gemma-3-27b", "--sheets", "32", "--max-length", "16384", code=3)
    assert data["fits"] is False
    assert 0 < data["max_length"] < 16_384 == data["requested_max_length"]
    assert 1 <= len(data["would_fit"]) <= 3
    out, err = run_text(capsys, "plan", "gemma-3-27b", "--sheets", "32", "--max-length", "16384", code=3)
    assert "Settings that would fit" in out
    assert err.count("\n") == 1
    assert "does not fit" in err


@pytest.mark.parametrize("pool", ["1", "1KiB", "1MiB"])
def test_a_pool_smaller_than_one_page_exits_3(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "gemma-3-27b", "--pool", pool, code=3)
    assert (data["sheets"], data["max_length"]) == (0, 0)
    assert data["would_fit"]


def test_every_offer_really_fits(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "meta-llama-3.1-70b", "--device", "h100", "--max-length", "32768", code=3)
    assert data["would_fit"]
    for offer in data["would_fit"]:
        options = offer.split(":")[0].split(" (")[0].split()
        budget = [] if "--memory" in options else ["--device", "h100"]
        run_json(capsys, "meta-llama-3.1-70b", "--max-length", "32768", *budget, *options)


def test_a_saved_plan_loads_back_and_carries_its_fingerprint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    data = run_json(capsys, "qwen3-next-80b-a3b", "--pool", "64GiB", "--output", str(path))
    assert load(path)[0].max_length == data["max_length"]
    assert json.loads(path.read_text())["fingerprint"] == data["fingerprint"]


def test_a_saved_plan_is_shown_as_it_was_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--output", str(path))
    shown = run_json(capsys, str(path))
    assert {name: made[name] for name in shown} == shown
    out, _ = run_text(capsys, "plan", str(path))
    assert "per rank (saved in" in out


def test_the_host_tier_is_an_integer_for_a_single_kind(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "deepseek-v3",
        "--pool",
        "64GiB",
        "--page-tokens",
        "64",
        "--tensor-parallel",
        "4",
        "--host-memory",
        "64GiB",
    )
    assert run_json(capsys, *arguments)["host"]["pages"] == 15_279
    several = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--host-memory", "64GiB")["host"]
    assert set(several["pages"]) == set(several["page_bytes"]) == {"full", "window-1024"}


def test_a_workload_becomes_a_number_of_users(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "prompt=1200/6000,output=250/900"
    alone = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--workload", spec)["served"]
    shared = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--workload", spec + ",shared=1024")["served"]
    warm = run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--workload", spec + ",sessions=4")["served"]
    assert shared["active"] > alone["active"] > warm["active"] > 0
    assert warm["users"] == 5 * warm["active"]
    assert (
        run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--max-length", "4096", "--workload", spec)["served"][
            "too_long"
        ]
        > 0
    )


def test_a_workload_is_never_said_to_compute_more_at_once_than_it_may(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3.2-1b", "--device", "h200", "--workload", "prompt=1200/6000,output=250/900,shared=800,sessions=4")
    capped = run_json(capsys, *asked, "--max-requests", "64")["served"]
    assert (capped["active"], capped["users"]) == (64, 320)
    assert capped["fitting"] > 64
    text, _ = run_text(capsys, "plan", *asked, "--max-requests", "64")
    assert (
        f"320 users, 64 of them being computed at once: --max-requests; memory would hold {capped['fitting']:,}" in text
    )
    free = run_json(capsys, *asked, "--max-requests", "2000")["served"]
    assert free["active"] == free["fitting"] < 2000
    assert (
        "of them being computed at once: as many as memory holds"
        in run_text(capsys, "plan", *asked, "--max-requests", "2000")[0]
    )


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plan_can_be_drawn(suffix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / f"plan.{suffix}"
    run_text(capsys, "plan", "gemma-3-27b", "--device", "h200", "--plot", str(path))
    magic = {"svg": b"<?xml", "png": b"\x89PNG"}[suffix]
    assert path.read_bytes().startswith(magic)


def test_whatif_lists_one_change_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "whatif", "gemma-3-27b", "--device", "h100")
    assert "as asked" in out
    assert "--kv-dtype fp8" in out
    assert main(["whatif", "qwen3-next-80b-a3b", "--pool", "8GiB", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    base, fp8 = rows[0], next(row for row in rows if row["option"] == "--kv-dtype fp8")
    assert fp8["concurrency"][1] > base["concurrency"][1]


def test_whatif_says_when_fewer_may_run_than_the_pool_holds(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "whatif", "llama-3.1-8b", "--device", "h200", "--max-requests", "8")
    assert out.splitlines()[-1] == "requests: what the pool holds; --max-requests 8 lets no more run at once"
    out, _ = run_text(capsys, "whatif", "llama-3.1-8b", "--device", "h200", "--max-requests", "150")
    assert "lets no more run at once" in out, "with fp8 there would be 224"
    out, _ = run_text(capsys, "whatif", "llama-3.1-8b", "--device", "h200", "--max-requests", "4096")
    assert "run at once" not in out


@pytest.mark.parametrize(("option", "value"), [("--batch-tokens", "1m"), ("--max-requests", "600000")])
def test_whatif_tells_of_a_change_out_of_range_in_its_own_line(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = run_text(capsys, "whatif", "llama-3.1-8b", "--pool", "64GiB", option, value)
    lines = out.splitlines()
    assert "is out of range" in next(line for line in lines if option in line)
    assert "%" in next(line for line in lines if "--kv-dtype fp8" in line)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ("--memory 80GiB", int(0.92 * 80 * GIB)),
        ("--device h200 --memory-fraction 0.5", int(139.8 * GIB * 0.5)),
        ("--device h200", None),
        ("--pool 8GiB", None),
    ],
)
def test_a_plan_knows_the_most_that_was_named(
    given: str, limit: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = run_text(capsys, "plan", "llama-3.2-1b", "--json", *given.split())
    assert json.loads(out)["plan"]["limit_bytes"] == limit


def test_the_catalogue_is_listed_and_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200" in run_text(capsys, "devices")[0]
    out, _ = run_text(capsys, "models", "gemma")
    assert "gemma-3-27b" in out
    assert "52 window-1024" in out
    assert "llama" not in out
    run_text(capsys, "models", "no-such-thing", code=2)


def test_another_name_for_a_shape_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(
        "has the shape of deepseek-v3" in note for note in run_json(capsys, "deepseek-r1", "--pool", "64GiB")["notes"]
    )


def test_stages_follow_from_the_layers_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "gemma-3-27b", "--pool", "8GiB", "--stage-layers", "30,32")
    assert [stage["layers"] for stage in data["stages"]] == [30, 32]


def test_lookahead_reaches_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """A state is kept once more per lookahead token, by a lone request and by each of many."""
    plain = run_json(capsys, "qwen3-next-80b-a3b", "--pool", "64GiB", "--lengths", "8k")
    ahead = run_json(capsys, "qwen3-next-80b-a3b", "--pool", "64GiB", "--lengths", "8k", "--speculative-tokens", "3")
    assert ahead["demand"]["8192"]["state"] == 4 * plain["demand"]["8192"]["state"]
    assert ahead["concurrency"]["8192"] < 0.6 * plain["concurrency"]["8192"]


def test_no_request_is_counted_at_a_length_that_is_not_admitted(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "gemma-3-27b", "--pool", "8GiB", "--max-length", "4096", "--lengths", "4096,32768")
    assert data["concurrency"]["4096"] > 0 == data["concurrency"]["32768"]


@pytest.mark.parametrize("model", ["llama-4-scout-17b-16e-instruct", "rwkv7-world-0.1b", "gemma-3-27b"])
def test_every_kind_has_its_share_of_the_host_tier(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk of 8,192 tokens is empty at exactly 8,192: the share must not follow from that one moment."""
    host = run_json(capsys, model, "--pool", "64GiB", "--host-memory", "64GiB")["host"]
    pages = host["pages"] if isinstance(host["pages"], dict) else {"only": host["pages"]}
    assert all(count > 0 for count in pages.values())


def test_weights_beyond_the_memory_do_not_fit_whatever_the_override(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "meta-llama-3.1-70b", "--memory", "80GiB", "--sheets", "1", code=3)
    assert data["max_length"] == 0
    assert data["would_fit"]


def test_the_verdict_survives_a_reader_that_stops_early() -> None:
    """Under `set -o pipefail`, `quire plan … | head -1` must not read as a fit."""
    script = f"set -o pipefail; {sys.executable} -m quire.cli.main plan gemma-3-27b --pool 1MiB | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "does not fit" in done.stderr


def test_the_package_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"quire {quire.__version__}\n", 0), done.stderr
    done = subprocess.run([sys.executable, "-m", "quire", "plan", "no-such"], capture_output=True, check=False)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize("environment", [{"COLUMNS": "abc"}, {"PYTHONIOENCODING": "latin-1"}])
def test_odd_terminals_get_the_answer_too(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "quire.cli.main", "plan", "gemma-3-27b", "--pool", "8GiB"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert b"longest length" in done.stdout


def test_planning_never_imports_torch() -> None:
    """The base install has no torch, and an answer must not wait for it."""
    script = (
        "import sys; from quire.cli.main import main; code = main(['plan', 'gemma-3-27b', '--device', 'h200']); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_settings_that_would_fit_do_as_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """In main memory too, where sizes alone would be an accelerator's."""
    assert main(["plan", "llama-3.1-8b", "--device", "cpu", "--memory", "8GiB"]) == 3
    told = capsys.readouterr().out.partition("Settings that would fit\n")[2].splitlines()[0]
    settings, _, promised = told.partition("(longest length ")
    assert settings.split()[:2] == ["--device", "cpu"]
    assert main(["plan", "llama-3.1-8b", *settings.split()]) == 0
    assert f"longest length {promised.split()[0]} tokens" in capsys.readouterr().out


def test_a_memory_that_would_fit_is_offered_instead_of_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-70b", "--device", "h100"]) == 3
    told = capsys.readouterr().out.partition("Settings that would fit\n")[2]
    offered = next(line for line in told.splitlines() if line.lstrip().startswith("--memory"))
    assert "(instead of --device h100; longest length" in offered
    assert main(["plan", "llama-3.1-70b", *offered.split()[:2]]) == 0


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [
        (("gemma-3-27b", "--device", "h200"), False),
        (("gemma-3-27b", "--device", "h200", "--tensor-parallel", "2"), True),
        (("llama-3.1-70b", "--device", "h100"), True),
        (("gemma-3-27b", "--device", "h100", "--target-length", "32k", "--target-requests", "40"), True),
        (("gemma-3-27b", "--device", "h100", "--target-length", "8k", "--target-requests", "4"), False),
    ],
)
def test_the_plan_says_that_several_gpus_were_not_measured(
    asked: tuple[str, ...], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plans with ranks or stages, and answers that count devices."""
    main(["plan", *asked])
    assert ("not measured on several GPUs yet" in capsys.readouterr().out) is is_told
