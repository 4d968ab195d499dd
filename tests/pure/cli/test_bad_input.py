"""Bad input is one clear line with the numbers and the fix: never a traceback, never a silent default."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import quire
from command import refused, run_json, run_text
from quire.core.errors import MissingPackage, QuireError
from quire.options.extras import naming_extras

HUGE = "9" * 400


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("quire.plan/3", "quire.plan/7", "this version reads"), ('"sheets": ', '"sheets": 1', "changed")],
)
def test_a_plan_file_that_is_not_what_it_says_is_one_clear_line(
    old: str, new: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--output", str(path))
    path.write_text(path.read_text().replace(old, new))
    assert words in refused(capsys, "plan", str(path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gema-3-27b", "--pool", "1GiB"], "gemma-3-27b"),
        (["gemma-3-27b", "--pool", "8elephants"], "64.68GiB"),
        (["gemma-3-27b", "--pool", "0"], "at least 1"),
        (["gemma-3-27b", "--device", "h300"], "h200"),
        (["gemma-3-27b", "--device", "cuda"], "t4, give --memory, or neither for this machine"),
        (["gemma-3-27b", "--device", "h200", "--memory", "80GiB"], "one of them"),
        (["gemma-3-27b", "--pool", "1GiB", "--sheets", "4"], "one of them"),
        (["gemma-3-27b", "--sheets", "0"], "at least 1"),
        (["gemma-3-27b", "--sheets", "many"], "'many' is not a whole number of up to 18 digits"),
        (["gemma-3-27b", "--sheets", "-1"], "give at least 1"),
        (
            ["gemma-3-27b", "--pool", "1GiB", "--max-requests", "-1"],
            "--max-requests -1 is out of range: give at least 1, at",
        ),
        (
            ["gemma-3-27b", "--pool", "1GiB", "--reserved-pages", "-1"],
            "--reserved-pages -1 is out of range: give at least 0",
        ),
        (["gemma-3-27b", "--pool", "1GiB", "--draft-tokens", "-1"], "'-1' is out of range: give 1 to 1,073,741,824"),
        (["gemma-3-27b", "--pool", "1GiB", "--draft-tokens", HUGE], "is not a whole number of up to 18 digits"),
        (["gemma-3-27b", "--memory", "80GiB", "--memory-fraction", "1.5"], "up to 1"),
        (["gemma-3-27b", "--pool", "1GiB", "--memory-fraction", "0.5"], "--memory"),
        (["gemma-3-27b", "--pool", "1GiB", "--max-length", "200000"], "131,072"),
        (["gemma-3-27b", "--pool", "1GiB", "--max-length", "long"], "number of tokens"),
        (["gemma-3-27b", "--pool", "1GiB", "--kv-dtype", "int3"], "choose one of"),
        (["gemma-3-27b", "--pool", "1GiB", "--kv-dtype", "fp64"], "bf16"),
        (["gemma-3-27b", "--pool", "1GiB", "--state-dtype", "fp8"], "fp32"),
        (["gemma-3-27b", "--pool", "1GiB", "--tensor-parallel", "0"], "at least 1"),
        (["gemma-3-27b", "--pool", "1GiB", "--tensor-parallel", "3000"], "query heads"),
        (["gemma-3-27b", "--pool", "1GiB", "--pipeline-parallel", "100"], "62 layers"),
        (["gemma-3-27b", "--pool", "1GiB", "--page-tokens", "elephant=16"], "window-1024"),
        (["deepseek-v4-pro", "--pool", "1GiB", "--page-tokens", "64"], "multiple of 128"),
        (["gemma-3-27b", "--pool", "1GiB", "--match-unit", "128"], "at most 64"),
        (["gemma-3-27b", "--pool", "1GiB", "--workload", "prompt=5"], "prompt=1200/6000"),
        (["gemma-3-27b", "--pool", "1GiB", "--workload", "prompt=9/3,output=1/2"], "median"),
        (["gemma-3-27b", "--pool", "1GiB", "--target-length", "5"], "give both"),
        (["gemma-3-27b", "--pool", "1GiB", "--plot", "plan.pdf"], ".svg or .png"),
        (["gemma-3-27b", "--pool", "1GiB", "--output", "/no/such/folder/plan.json"], "No such file"),
        (["gemma-3-27b", "--pool", "1GiB", "--lengths", "1,zwei"], "number of tokens"),
        (["gemma-3-27b", "--frobnicate"], "--frobnicate"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, "plan", *arguments)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"kind": "window", "window": 0, "kv_heads": 8, "head_dim": 128}, "window"),
        ({"kind": "elephant", "kv_heads": 8, "head_dim": 128}, "elephant"),
        ({"kind": "full", "kv_heads": -8, "head_dim": 128}, "kv_heads"),
        ({"kind": "full", "kv_heads": 8, "head_dim": 128, "trunk": 1}, "trunk"),
        ({"kind": "chunked", "kv_heads": 8, "head_dim": 128}, "chunk"),
    ],
)
def test_a_shape_file_with_nonsense_is_one_clear_line(
    layer: dict[str, object], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps({"quire_shape": 1, "name": "odd", "max_length": 4096, "layers": [layer]}))
    assert words in refused(capsys, "plan", str(path), "--pool", "1GiB")


def test_a_recording_nested_beyond_reason_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    assert "is not a recording" in refused(capsys, "replay", str(tmp_path / "deep.jsonl"))


WHOLE = "is not a whole number of up to 18 digits"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pool", HUGE], f"argument --pool: '{HUGE}' "),
        (["--pool", "1GiB", "--max-length", HUGE], f"argument --max-length: '{HUGE}' "),
        (["--sheets", "9000000000000000000"], f"argument --sheets: '9000000000000000000' {WHOLE}"),
        (
            ["--pool", "1GiB", "--reserved-pages", "9000000000000000000"],
            f"argument --reserved-pages: '9000000000000000000' {WHOLE}",
        ),
        (
            ["--pool", "1GiB", "--speculative-tokens", "99999999999999999999"],
            f"argument --speculative-tokens: '99999999999999999999' {WHOLE}",
        ),
        (
            ["--pool", "1GiB", "--batch-tokens", "100000m"],
            "--batch-tokens 104,857,600,000 is out of range: give at least 1, at most 1,048,576",
        ),
        (
            ["--pool", "1GiB", "--target-length", "1k", "--target-requests", "9000000000000000"],
            "argument --target-requests: '9000000000000000' is out of range: give 1 to 1,073,741,824",
        ),
        (
            ["--pool", "1GiB", "--target-length", "1m", "--target-requests", "1"],
            "--target-length 1,048,576 is beyond the 131,072 that gemma-3-27b supports",
        ),
        (
            ["--pool", "1GiB", "--workload", f"prompt=1/2,output=1/2,sessions={HUGE}"],
            f"argument --workload: sessions='{HUGE}",
        ),
        (
            ["--pool", "1GiB", "--workload", "prompt=1/2,prompt=1/3,output=1/2"],
            "--workload 'prompt=1/2,prompt=1/3,output=1/2' says something twice",
        ),
        (
            ["--pool", "1TiB"],
            "a pool of 1023.99 GiB is more than tables of 32-bit addresses reach: give at most 512.00",
        ),
        (["--memory", "80"], "a device of 80 B is no device: write the unit, like --memory 80GiB"),
        (["--memory", "80GiB", "--memory-fraction", "0"], "a memory fraction of 0.0 is out of range"),
        (["--device", ""], "device '' is not known: choose a10, "),
        (["--pool", "1GiB", "--page-tokens", "16,32"], "argument --page-tokens: '16,32' gives one page size twice"),
        (["--pool", "1GiB", "--max-length", "1000.7"], "argument --max-length: '1000.7' is not a number of tokens"),
        (["--pool", "1GiB", "--max-requests", "²"], f"argument --max-requests: '²' {WHOLE}"),
        (["--pool", "1GiB", "--ignore-field", "zzz"], "gemma-3-27b has no field 'zzz' to ignore"),
        (["--pool", "1GiB", "--explain", "--json"], "--explain prints text: leave out --json"),
        (["--pool", "1GiB", "--stage-layers", "30,30"], "--stage-layers 30,30 must be 2 numbers that add up to 62"),
    ],
)
def test_numbers_beyond_reason_are_refused_and_never_wrap(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each for its own reason: the message names the option and what was given for it."""
    assert said in refused(capsys, "plan", "gemma-3-27b", *arguments)


def test_an_unknown_option_names_its_command_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "plan", "gemma-3-27b", "--devise", "h200")
    assert "did you mean --device?" in message
    assert "quire plan --help" in message


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file or folder" in refused(capsys, "plan", "./absent", "--pool", "1GiB")


def test_options_beside_a_saved_plan_are_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run_json(capsys, "gemma-3-27b", "--pool", "64GiB", "--output", str(path))
    assert "--device" in refused(capsys, "plan", str(path), "--device", "h100")
    assert "saved plan" in refused(capsys, "whatif", str(path), "--pool", "1GiB")


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Takes modules away as if nothing had imported them. After the test the same ones are back, also where their
    packages name them: else later tests of this process would replace parts of a module that nothing uses."""
    for name in sorted(names, reverse=True):
        package, _, leaf = name.rpartition(".")
        monkeypatch.setattr(sys.modules[package], leaf, sys.modules[name])
        monkeypatch.delitem(sys.modules, name)


def test_a_command_that_lacks_its_extra_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base install has no torch: one line, not a traceback."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    forget(monkeypatch, *(name for name in sys.modules if name.startswith(("quire.fetch", "quire.worker.weights"))))
    command, on_gpu = "pip install -c constraints.txt '.[torch]'", "pip install '.[gpu]'"
    told = refused(capsys, "fetch")
    assert told == f"quire: fetch needs gguf: install it with {command} in Quire's checkout (for a GPU: {on_gpu})\n"
    root = Path(__file__).parents[3]
    readme, quick_start = (root / "README.md").read_text(), (root / "docs" / "quick-start.md").read_text()
    assert command in readme, "the same words"
    assert command in quick_start
    assert f"For a GPU: `{on_gpu}`, with `'.[gpu,serve]'` the server" in readme


@pytest.mark.story
def test_from_python_a_missing_package_is_told_as_by_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the name is imported, and when a model is made; and whoever expects an ImportError gets one."""

    def lacking(*_: object) -> None:
        raise ModuleNotFoundError(name="transformers.models")

    monkeypatch.setattr("quire.build.engine.find_source", lacking)
    with pytest.raises(MissingPackage, match="LLM needs transformers: install it with pip install -c"):
        quire.LLM(device="cpu")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    again = ("quire.llm", "quire.llm.answers", "quire.llm.schema", "quire.text.answer", "quire.text.tokenizer")
    forget(monkeypatch, *again)
    for name in ("LLM", "Completion"):
        with pytest.raises(ImportError, match=f"{name} needs tokenizers: ") as told:
            getattr(quire, name)
        assert isinstance(told.value, QuireError)


def test_an_error_that_no_extra_mends_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), naming_extras("serve"):
        importlib.import_module("no_such_module")


@pytest.mark.parametrize(
    ("package", "way"),
    [
        ("torch", "-c constraints.txt '.[serve]' in Quire's checkout (for a GPU: pip install '.[gpu,serve]')"),
        ("uvicorn", "-c constraints.txt '.[serve]' in Quire's checkout (for a GPU: pip install '.[gpu,serve]')"),
        ("triton", "'.[gpu]' in Quire's checkout"),
    ],
)
def test_the_server_brings_torch_and_a_gpu_takes_any_torch(package: str, way: str) -> None:
    with pytest.raises(MissingPackage) as told, naming_extras("serve"):
        raise ModuleNotFoundError(name=package)
    assert str(told.value) == f"serve needs {package}: install it with pip install {way}"


@pytest.mark.parametrize("override", [["--pool", "79GiB"], ["--sheets", "4000"]])
def test_a_pool_beyond_the_memory_is_understood_and_too_large(
    override: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = run_text(capsys, "plan", "gemma-3-27b", "--memory", "80GiB", *override, code=3)
    assert "give at most" in told


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["genrate", "--prompt", "a"], "there is no command genrate: did you mean generate?"),
        ([], "quire: name a command: generate, chat, serve, "),
        (["--foo"], "quire: --foo stands before a command: name one first: generate, chat, serve, "),
        (["generate", "--prompt", "a", "--kv-dtype", "int8"], "--kv-dtype int8 is not one of fp32, bf16, fp16, fp8"),
        (["generate", "--promt", "a"], "--promt is not understood: did you mean --prompt?"),
        (["generate", "--prompt", "a", "--max-tokns=4"], "--max-tokns is not understood: did you mean --max-tokens?"),
        (["plan", "gemma-3-27b", "--pol", "1GiB", "--max-length", "long"], "did you mean --pool?"),
        (["serve", "--prot", "80"], "did you mean --port?"),
        (["plan", "gemma-3-27b", "--foo", "1"], "quire plan: --foo is not understood (see"),
        (["generate", "--foo"], "quire generate: --foo is not understood (see"),
        (["serve", "--quiet"], "quire serve: --quiet is not understood (see"),
        (["bench", "decod", "--rows", "4"], "quire bench: argument WHAT: invalid choice: 'decod'"),
    ],
)
def test_what_was_probably_meant_is_said(typed: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *typed)


@pytest.mark.parametrize("module", ["quire.cli.main.build_parser", "quire.cli.plan.run"])
def test_an_interruption_is_one_line_wherever_it_comes(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while commands are still being imported."""

    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, interrupted)
    assert run_text(capsys, "plan", "gemma-3-27b", code=130) == ("", "quire: interrupted\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe"),
        (TimeoutError("timed out"), "timed out"),
        (TimeoutError(), "TimeoutError"),
        (FileNotFoundError(2, "No such file or directory", "store/x"), "store/x: No such file or directory"),
    ],
)
def test_what_the_system_refuses_on_the_way_is_named_and_not_taken_for_the_answer(
    error: OSError, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is down, a folder that is gone: nothing is wrong with where the answer goes."""

    def refused_on_the_way(*_given: object) -> None:
        raise error

    monkeypatch.setattr("quire.cli.devices.run", refused_on_the_way)
    assert run_text(capsys, "devices", code=1) == ("", f"quire: devices failed: {told}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_an_answer_that_cannot_be_written_is_said_to_be_one(flags: list[str]) -> None:
    command = [sys.executable, *flags, "-m", "quire.cli.main", "devices"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "quire: cannot write the answer: No space left on device\n"
    assert done.returncode == 1
