"""A model is named in one way, by position, and the default one has a name like any other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from command import refused, run_text
from quire.cli.main import build_parser, main
from quire.fetch.find import DEFAULT_MODEL

TAKING_A_MODEL = {
    "quire generate", "quire chat", "quire serve", "quire rank", "quire fetch", "quire plan", "quire whatif",
    "quire simulate", "quire deploy", "quire bench decode", "quire bench serve",
}  # fmt: skip


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from (command, *parsers(command))


@pytest.mark.story
def test_every_command_takes_its_model_by_position() -> None:
    positions = {
        parser.prog
        for parser in parsers(build_parser())
        for action in parser._actions
        if action.dest == "model" and not action.option_strings
    }
    assert positions == TAKING_A_MODEL


@pytest.mark.story
@pytest.mark.parametrize("option", ["--model", "--model=gemma-3-27b"])
@pytest.mark.parametrize("command", sorted(TAKING_A_MODEL))
def test_a_model_given_as_an_option_is_told_where_it_goes(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not sent to --draft-model, which is near."""
    told = refused(capsys, *command.split()[1:], option, *([] if "=" in option else ["gemma-3-27b"]))
    assert f"{command}: --model is not understood: the model stands by itself, as in {command} MODEL " in told


@pytest.mark.story
def test_only_a_command_that_takes_a_saved_plan_offers_one(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "whatif", "simulate"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ("saved plan" in capsys.readouterr().out) == (command == "plan")


@pytest.mark.parametrize("command", ["plan", "whatif", "models"])
def test_the_default_models_name_is_known_without_its_weights(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    memory = [] if command == "models" else ["--memory", "8GiB"]
    assert "smollm2-135m" in run_text(capsys, command, DEFAULT_MODEL, *memory)[0]
