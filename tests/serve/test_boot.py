"""What a server boots from: a plan made here, or one that was saved and is held against this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import socket
from pathlib import Path

import pytest

from command import refused
from quire.build import machine
from quire.build import plan as build_plan
from quire.build.engine import prepare
from quire.build.machine import Machine
from quire.cli import boot, serve
from quire.cli.boot import boot_plan
from quire.cli.configuration import complete
from quire.cli.flags import run_options
from quire.cli.main import main
from quire.cli.serve import add_all
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, InputError, ModelError, PlanFileError
from quire.options.drafts import DRAFT_TOKENS
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.plan.settings import Settings
from quire.serve import server

SIZE = ("--pool", "2MiB", "--max-length", "256", "--max-requests", "8", "--batch-tokens", "64")


@pytest.fixture
def plan_file(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    assert main(["plan", str(tiny_folder), *SIZE, "--kv-dtype", "fp32", "--output", str(path)]) == 0
    capsys.readouterr()
    return path


def booted(folder: Path, dtype: DType = DType.FP32, device: str = "cpu", **typed: object) -> tuple[Plan, str]:
    """The plan that a server boots from where these options were typed."""
    parsed = complete(add_all, argparse.Namespace(device=device, dtype=dtype, **typed))
    return boot_plan(parsed, folder, run_options(parsed))


def test_the_report_at_boot_is_the_plans(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, _ = booted(tiny_folder, pool=2 << 20, max_length=256, max_requests=8, batch_tokens=64)
    report = capsys.readouterr().out
    main(["plan", str(tiny_folder), *SIZE, "--device", "cpu"])
    assert report == capsys.readouterr().out
    assert plan.kv_dtype == "fp32"


@pytest.mark.story
def test_keys_and_values_follow_the_weights_unless_they_are_told_otherwise(tiny_folder: Path) -> None:
    size = {"pool": 2 << 20, "max_length": 256, "max_requests": 8, "batch_tokens": 64}
    assert booted(tiny_folder, **size)[0].kv_dtype == "fp32"
    for told in (DType.BF16, DType.FP16, DType.FP8):
        assert booted(tiny_folder, **size, kv_dtype=told)[0].kv_dtype == told.value
    with pytest.raises(InputError, match="--kv-dtype int8 is not one of fp32, bf16, fp16, fp8"):
        booted(tiny_folder, **size, kv_dtype=DType.INT8)
    with pytest.raises(InputError, match="keys and values as int8: choose one of fp32, bf16, fp16, fp8"):
        prepare(tiny_folder, settings=Settings(kv_dtype=DType.INT8))


def test_a_field_that_nobody_knows_is_ignored_where_that_is_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    """By the same option as `quire plan`: what can be planned can be served."""
    strange = tmp_path / "strange"
    shutil.copytree(tiny_folder, strange)
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "cache_folding": 3}))
    with pytest.raises(ModelError, match="--ignore-field cache_folding"):
        booted(strange, pool=2 << 20)
    assert booted(strange, pool=2 << 20, ignore_field=["cache_folding"])[0].fits


def test_a_server_is_planned_for_the_device_that_it_runs_on(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine's GPU is not asked for memory when its CPU runs the model, nor the other way round."""
    parts = {"cuda": Machine("a GPU", 8 << 30, 0.9, True), "cpu": Machine("main memory", 1 << 30, 0.5, False)}
    for module in (boot, build_plan):
        monkeypatch.setattr(module, "machine_of", parts.__getitem__)
    pools = {}
    for device, part in parts.items():
        plan, planned_for = booted(tiny_folder, DType.BF16, device=device)
        pools[device] = plan.stages[0].pool_bytes
        assert planned_for.startswith(f"{part.name}: ")
        assert planned_for in capsys.readouterr().out
        assert 0 < pools[device] <= part.memory_fraction * part.memory_bytes
    assert pools["cuda"] > parts["cpu"].memory_bytes


def test_a_gpu_that_does_not_answer_is_told_before_a_plan_is_made(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_accelerator", lambda: None)
    with pytest.raises(InputError, match="choose --device cpu"):
        booted(tiny_folder, DType.BF16, device="cuda")


def test_weights_are_held_as_the_device_likes_them_unless_told_otherwise(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the engine's process is told where it runs, and what to compile."""
    monkeypatch.setattr(machine, "_accelerator", lambda: Machine("a GPU", 8 << 30, 0.9, True))
    monkeypatch.setattr(serve, "torch_elsewhere_has_cuda", lambda: True)
    told: list[tuple[str, str, bool]] = []

    def run(_listener: object, _planned: object, options: RunOptions, *_given: object, **_named: object) -> None:
        told.append((options.weights_dtype.value, options.device, options.compile))

    monkeypatch.setattr(server, "run", run)
    for typed in ([], ["--device", "cuda", "--compile"], ["--device", "cpu"], ["--dtype", "fp16"]):
        assert main(["serve", str(tiny_folder), *SIZE, "--port", "0", *typed]) == 0
    assert told == [("bf16", "cuda", False), ("bf16", "cuda", True), ("fp32", "cpu", False), ("fp16", "cuda", False)]


@pytest.mark.parametrize("option", ["--compile", "--deterministic"])
def test_what_needs_a_gpu_is_refused_before_anything_is_planned(
    option: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, "serve", str(tiny_folder), *SIZE, "--port", "0", "--device", "cpu", option)
    assert "needs --device cuda" in told


def test_a_plan_of_another_model_is_refused_by_its_name(tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "gemma.json"
    assert main(["plan", "gemma-3-270m", "--pool", "1GiB", "--output", str(file)]) == 0
    with pytest.raises(InputError, match=f"made for gemma-3-270m, does not suit {tiny_folder.name} "):
        booted(tiny_folder, plan=file)


def test_sizes_beside_a_saved_plan_are_refused(tiny_folder: Path, plan_file: Path) -> None:
    for name, value in (("pool", 1 << 20), ("max_length", 128), ("kv_dtype", DType.BF16)):
        with pytest.raises(InputError, match=f"--{name.replace('_', '-')} cannot be given with --plan"):
            booted(tiny_folder, plan=plan_file, **{name: value})


def test_a_saved_plan_is_what_the_server_runs_on_and_differences_are_printed(
    tiny_folder: Path, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, planned_for = booted(tiny_folder, plan=plan_file)
    saved = json.loads(plan_file.read_text())
    assert plan.max_length == 256
    assert [stage.sheets for stage in plan.stages] == [stage["sheets"] for stage in saved["stages"]]
    assert str(plan_file) in planned_for
    report = capsys.readouterr().out
    assert f"sheets: {saved['sheets']} in the file, " in report
    assert "max_length: 256 in the file, 1024 here" in report


@pytest.mark.story
def test_a_saved_plan_for_another_device_or_dtype_is_a_difference(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan without --device is for an accelerator, whose keys and values are in bf16: on a CPU neither is usual."""
    file = tmp_path / "plan.json"
    assert main(["plan", str(tiny_folder), *SIZE, "--output", str(file)]) == 0
    capsys.readouterr()
    plan, _ = booted(tiny_folder, plan=file)
    report = capsys.readouterr().out
    assert plan.kv_dtype == "bf16"
    assert "kv_dtype: bf16 in the file, fp32 here" in report
    assert "planned for: an accelerator of any size" in report


def test_a_draft_model_is_in_the_plan_that_a_server_boots_from(tiny_folder: Path) -> None:
    size = {"pool": 4 << 20, "max_length": 256, "max_requests": 8, "batch_tokens": 64}
    alone, _ = booted(tiny_folder, **size)
    both, _ = booted(tiny_folder, **size, draft_model=str(tiny_folder))
    assert both.bytes_per_token == 2 * alone.bytes_per_token
    assert both.lookahead == DRAFT_TOKENS


def test_a_plan_that_was_saved_without_the_draft_model_is_refused_with_it(tiny_folder: Path, plan_file: Path) -> None:
    with pytest.raises(InputError, match="nothing is planned for the guesses"):
        booted(tiny_folder, plan=plan_file, draft_model=str(tiny_folder))


def test_a_plan_of_another_layout_is_refused(
    tiny_folder: Path, plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    with pytest.raises(InputError, match="lays out its pages otherwise"):
        booted(other, plan=plan_file)
    assert "bytes_per_token" in capsys.readouterr().out


def test_a_plan_that_does_not_know_the_models_rotary_frequencies_is_refused(
    tiny_folder: Path, plan_file: Path, tmp_path: Path
) -> None:
    """Its pages are alike; their keys would be named after other frequencies than they have. Which of them a plan has
    chosen, for its own longest length, is no difference."""
    other, path = tmp_path / "other", tmp_path / "long.json"
    shutil.copytree(tiny_folder, other)
    config = json.loads((other / "config.json").read_text())
    rope = {"type": "longrope", "original_max_position_embeddings": 100}
    (other / "config.json").write_text(json.dumps({**config, "rope_parameters": None, "rope_scaling": rope}))
    with pytest.raises(InputError, match="rotary frequencies 'for any length', this model would have 'longrope long'"):
        booted(other, plan=plan_file)
    size = ("--pool", "2MiB", "--kv-dtype", "fp32", "--max-length", "64")
    main(["plan", str(other), *size, "--output", str(path)])
    plan, _ = booted(other, plan=path)
    assert plan.rope == "longrope short"


def test_a_plan_larger_than_the_machine_is_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that could run the model with a smaller pool."""
    path = tmp_path / "large.json"
    main(["plan", str(tiny_folder), "--pool", "96MiB", "--kv-dtype", "fp32", "--output", str(path)])
    for mebibytes, fits in ((100, True), (90, False)):
        small = Machine("a small machine", mebibytes << 20, 1.0, False)
        monkeypatch.setattr(boot, "machine_of", lambda _device, small=small: small)
        if fits:
            booted(tiny_folder, plan=path)
        else:
            with pytest.raises(DoesNotFit, match=r"pool of 96.*exceed the 90\.00 MiB that this machine has left"):
                booted(tiny_folder, plan=path)


def test_a_plan_that_was_changed_is_refused(tiny_folder: Path, plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text().replace('"max_length": 256', '"max_length": 255'))
    with pytest.raises(PlanFileError):
        booted(tiny_folder, plan=plan_file)


@pytest.mark.story
@pytest.mark.story
def test_small_pieces_of_an_answer_are_sent_at_once() -> None:
    """Every answer on a connection that was used before took 40 ms: its body waited for the acknowledgement of its
    head."""
    with server.listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken_is_told_before_anything_else(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No plan is printed first, and no model looked for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for model in (str(tiny_folder), "no-such-model"):
            assert main(["serve", model, *SIZE, "--port", port]) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"quire: cannot listen at 127.0.0.1:{port}: Address already in use")


@pytest.mark.story
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--request-seconds", "-1"], "request_seconds is -1.0: give a number above 0"),
        (["--keys", "absent.json"], "cannot read the keys in absent.json"),
        (["--dtype", "fp8"], "--dtype fp8 is not one of fp32, bf16, fp16"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid:0: "),
    ],
)
def test_what_is_wrong_about_serving_is_told_before_a_model_is_looked_for(
    wrong: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, "serve", "no-such-model", *SIZE, "--port", "0", *wrong)
    assert words in told
    assert "Unknown error" not in told


def test_a_mistyped_name_in_a_file_says_what_was_probably_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quire.toml").write_text("max_lenght = 4096\n")
    assert main(["serve", "--config", str(tmp_path / "quire.toml")]) == 2
    assert "max-lenght is no option of quire serve: did you mean max-length?" in capsys.readouterr().err
