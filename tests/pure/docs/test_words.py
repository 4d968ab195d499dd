"""Help lines and metrics use the field's words, and each stands alone."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from quire.cli.main import build_parser

METRICS = Path(__file__).parents[3] / "src" / "quire" / "serve" / "metrics.py"
NOT_OURS = (
    "told|tells|hears?|heard|nobody|whoever|somebody|sent away|put out|guess(?:es|ed)?|came true|beside|behind|so many|"
    "yields?|elders?|errands?|bells?|desks?|beats?|let in|forgotten|made up"
)
"""Words that Quire's users would have to decode; the glossary's exact terms are not among them."""
UNFINISHED = re.compile(r"(of|until|at|after|and|in|for|with) (?!-)|…|.*…$")
"""How the end of an unseen sentence begins."""


def help_lines(parser: argparse.ArgumentParser, path: str = "quire") -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{path} {choice.dest}", choice.help or ""
            for name, below in action.choices.items():
                yield from help_lines(below, f"{path} {name}")
        elif action.help is not argparse.SUPPRESS:
            yield f"{path} {(action.option_strings or [action.dest])[-1]}", action.help or ""


def metric_lines() -> Iterator[tuple[str, str]]:
    """A metric's name, and the string after it."""
    for node in ast.walk(ast.parse(METRICS.read_text())):
        parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        strings = [part.value for part in parts[:2] if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if len(strings) == 2 and strings[0].startswith("quire_"):
            yield strings[0], strings[1]


def test_every_option_and_metric_is_described() -> None:
    options, metrics = dict(help_lines(build_parser())), dict(metric_lines())
    assert len(options) > 100
    assert len(metrics) > 40
    assert not [name for name, text in (options | metrics).items() if len(text.split()) < 2]


def test_descriptions_use_the_words_of_the_field() -> None:
    lines = [*help_lines(build_parser()), *metric_lines()]
    assert not [(name, text) for name, text in lines if re.search(rf"\b(?:{NOT_OURS})\b", text, re.IGNORECASE)]


def test_descriptions_stand_alone() -> None:
    lines = [*help_lines(build_parser()), *metric_lines()]
    assert not [(name, text) for name, text in lines if UNFINISHED.match(text)]


def descriptions(parser: argparse.ArgumentParser, path: str = "quire") -> Iterator[tuple[str, str]]:
    yield path, parser.description or ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from descriptions(below, f"{path} {name}")


def test_what_a_command_says_of_itself_uses_the_words_of_the_field() -> None:
    found = dict(descriptions(build_parser()))
    assert len(found) > 14
    assert not [(name, text) for name, text in found.items() if re.search(rf"\b(?:{NOT_OURS})\b", text, re.IGNORECASE)]
