"""`quire generate` where an answer or a prompt is longer than the plan admits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from command import refused
from quire.cli import generate
from quire.cli.main import main
from tiny_folder import make_folder


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = make_folder(tmp_path_factory.mktemp("tiny"))
    return ["generate", str(folder), "--pool", "2MiB", "--max-length", "64"]


def test_an_answer_that_is_cut_to_what_fits_says_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    told = []
    for most in ("5", "500"):
        assert main([*arguments, "--raw", "--prompt", "the fox", "--max-tokens", most]) == 0
        told.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("quire:")])
    assert told[0] == []
    (line,) = told[1]
    assert "an answer of 500 tokens does not fit behind this prompt of 2, the longest request has 64" in line
    assert line.endswith("it is cut to 62")
    assert not caplog.messages, "the library does not say it again"


@pytest.mark.story
def test_a_prompt_on_standard_input_is_the_same_as_a_typed_one(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """echo ends its text with a newline, which is not part of the prompt; a second one would be."""
    seen: list[str] = []
    monkeypatch.setattr(generate, "_pieces", lambda _llm, prompt, _options: seen.append(prompt) or iter([""]))
    for text in ("the fox", "the fox\n", "the\nfox\n\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert main([*arguments, "--prompt", "-"]) == 0
    assert seen == ["the fox", "the fox", "the\nfox\n"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main([*arguments, "--prompt", "-"]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_a_prompt_that_can_never_run_ends_with_the_code_of_what_does_not_fit(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--raw", "--prompt", "the fox " * 100]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: a prompt of 201 tokens can never run: the longest request, with its answer, has 64;")
    assert line.endswith("; shorten it, or raise --max-length")


@pytest.mark.parametrize(("flags", "fix"), [
    (("--pool", "1MiB"), "shorten it: the model itself supports no more"),
    (("--pool", "64KiB"), "shorten it, or raise --pool"),
])  # fmt: skip
def test_the_advice_for_a_long_prompt_is_what_would_help(
    flags: tuple[str, ...], fix: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the model's own limit binds, neither length nor pool does."""
    place = arguments.index("--max-length")
    model = [*arguments[:place], *arguments[place + 2 :]]
    assert main([*model, *flags, "--raw", "--prompt", "the fox " * 1000]) == 3
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"; {fix}")


def test_host_memory_beyond_the_machine_ends_with_the_code_of_what_does_not_fit(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--prompt", "the fox", "--host-memory", "1000TiB"]) == 3
    assert "is more than the" in capsys.readouterr().err


@pytest.mark.story
@pytest.mark.parametrize("command", [["generate", "--prompt", "a"], ["chat"]])
def test_sampling_that_cannot_be_is_told_before_a_model_is_looked_for(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "temperature is -1.0: give 0 to 100" in refused(capsys, *command, "no-such-model", "--temperature", "-1")


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp32"])
def test_keys_and_values_are_held_as_asked(
    dtype: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--raw", "--prompt", "the fox", "--max-tokens", "4", "--kv-dtype", dtype, "--stats"]) == 0
    assert f"KV {dtype}" in capsys.readouterr().err
