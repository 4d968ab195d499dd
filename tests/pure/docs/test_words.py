"""Help lines, metrics and pages use the field's words, and each help line stands alone.

Pages have words of the list below where they were not rewritten yet: `words.json` counts them, and the counts may only
shrink. After a page has lost some, `python tests/pure/docs/test_words.py` writes the list anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from quire.cli.main import build_parser

ROOT, LIST = Path(__file__).parents[3], Path(__file__).with_name("words.json")
METRICS = ROOT / "src" / "quire" / "serve" / "metrics.py"
NOT_OURS = (
    "told|tells|hears?|heard|nobody|whoever|somebody|sent away|put out|guess(?:es|ed)?|came true|beside|behind|so many|"
    "yields?|elders?|errands?|bells?|desks?|beats?|let in|forgotten|made up"
)
"""Words that Quire's users would have to decode; the glossary's exact terms are not among them."""
OF_PAGES = re.compile(rf"\b(?:{NOT_OURS}|yielded|everybody|everyone|anybody|came round|gives way)\b", re.IGNORECASE)
Counts = dict[str, dict[str, int]]
EXACT = {"elder", "elders"}
"""Terms of the glossary."""
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
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


def count() -> Counts:
    """By page, then by word: how often a word that is not the field's stands in its text, code aside."""
    found = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        words = (one.group().lower() for one in OF_PAGES.finditer(CODE.sub("", page.read_text())))
        if counted := Counter(word for word in words if word not in EXACT):
            found[page.relative_to(ROOT).as_posix()] = dict(sorted(counted.items()))
    return found


def test_pages_lose_words_that_are_not_the_fields_and_gain_none() -> None:
    allowed: Counts = json.loads(LIST.read_text())
    found = count()
    assert not _beyond(found, allowed), "these are new: (page, word): (times, allowed)"
    assert not _beyond(allowed, found), "these have become fewer: run python tests/pure/docs/test_words.py"


def _beyond(counts: Counts, others: Counts) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (page, word): (times, others.get(page, {}).get(word, 0))
        for page, words in counts.items()
        for word, times in words.items()
        if times > others.get(page, {}).get(word, 0)
    }


if __name__ == "__main__":
    LIST.write_text(json.dumps(count(), indent=1) + "\n")
