"""Grammars that are tried before the engine hears of them."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

from quire.core.errors import InputError, QuireError
from quire.core.sampling import Grammar, GrammarSort
from quire.core.units import MIB
from quire.serve import trial as module
from quire.serve.trial import Trial
from quire.text.tokenizer import Tokenizer

_NUMBERS = itertools.count()


def of(schema: dict[str, Any]) -> Grammar:
    return Grammar(GrammarSort.JSON, json.dumps(schema))


def good() -> Grammar:
    """Another one each time: one that compiled is not tried again."""
    return of({"type": "object", "properties": {f"a{next(_NUMBERS)}": {"type": "string"}}})


@pytest.fixture
def trial(tiny_folder: Path) -> Iterator[Trial]:
    trial = Trial(Tokenizer.load(tiny_folder), seconds=0.5)
    yield trial
    trial.close()


def test_what_is_wrong_with_a_grammar_is_told(trial: Trial) -> None:
    trial.compile(good())
    with pytest.raises(InputError, match="the json grammar cannot be used"):
        trial.compile(of({"type": "nonsense"}))
    trial.compile(good())


def test_a_grammar_that_compiled_is_not_tried_again(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that did not is, and of more than may be known the one that was asked for longest ago."""
    monkeypatch.setattr(module, "MOST_KNOWN", 2)
    tried: list[str] = []
    real = trial._tried
    monkeypatch.setattr(trial, "_tried", lambda grammar: tried.append(grammar.text) or real(grammar))
    pattern = Grammar(GrammarSort.REGEX, "a")
    for grammar in (pattern, Grammar(GrammarSort.REGEX, "b"), pattern, Grammar(GrammarSort.REGEX, "c"), pattern):
        trial.compile(grammar)
    trial.compile(Grammar(GrammarSort.REGEX, "b"))
    assert tried == ["a", "b", "c", "b"]
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be used"):
            trial.compile(of({"type": "nonsense"}))
    with pytest.raises(InputError, match="the json grammar is not JSON"):
        trial.compile(Grammar(GrammarSort.JSON, "a"))  # the same text, another notation
    assert len(tried) == 7


@pytest.mark.story
def test_a_tokenizer_that_cannot_be_read_is_named(tiny_folder: Path) -> None:
    """The process that tries grammars used to end, and the server to call it its own mistake."""
    tokenizer = Tokenizer.load(tiny_folder)
    tokenizer.inner.decoder = decoders.Sequence([decoders.Replace("\u0120", " "), decoders.Fuse()])
    trial = Trial(tokenizer)
    try:
        with pytest.raises(InputError, match=rf"grammars cannot be used with the tokenizer of {tiny_folder.name}"):
            trial.compile(good())
    finally:
        trial.close()


@pytest.mark.story
@pytest.mark.parametrize(
    "endless",
    [
        {"type": "integer", "multipleOf": 1234567},
        {"allOf": [{"type": "string", "pattern": f"^.*a.{{{place}}}$"} for place in range(10, 40)]},
    ],
)
def test_a_grammar_that_takes_for_ever_is_refused_and_the_next_one_is_tried(
    trial: Trial, endless: dict[str, Any]
) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=r"was not compiled after 0.5 s of computing: simplify it"):
            trial.compile(of(endless))
        trial.compile(good())


@pytest.mark.story
def test_a_grammar_that_takes_too_much_memory_is_refused_and_the_next_one_is_tried(tiny_folder: Path) -> None:
    """There was a limit of time alone. A new process tries a grammar that found too little, since others before it may
    have taken the memory; it is blamed if it has the process for itself."""
    tokenizer = Tokenizer.load(tiny_folder)
    large = of({"enum": [f"{number} " * 20 for number in range(20_000)]})
    free = Trial(tokenizer, seconds=20)
    pages = int(Path(f"/proc/{process_of(free)}/statm").read_text().split()[5])
    free.compile(large)
    free.close()
    tight = Trial(tokenizer, seconds=20, most_bytes=pages * resource.getpagesize() + 8 * MIB)
    try:
        before = process_of(tight)
        with pytest.raises(InputError, match=r"the grammar takes more than [\d.]+ MiB to compile: simplify it"):
            tight.compile(large)
        assert process_of(tight) != before
    finally:
        tight.close()


def process_of(trial: Trial) -> int:
    trial.compile(good())
    assert trial._process is not None
    return trial._process.pid


@pytest.mark.story
def test_a_process_that_was_killed_is_not_the_grammars_fault(trial: Trial) -> None:
    process = process_of(trial)
    os.kill(process, signal.SIGKILL)
    assert process_of(trial) != process


@pytest.mark.story
def test_where_no_process_lives_the_grammar_is_not_blamed_and_what_it_wrote_is_not_shown(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\necho what a client sent >&2\nexit 3\n")
    dying.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(dying))
        with pytest.raises(Exception, match="the process that tries grammars ended with 3") as failed:
            trial.compile(good())
    assert not isinstance(failed.value, QuireError)
    assert capfd.readouterr().err == ""
    trial.compile(good())


@pytest.mark.story
def test_a_process_that_stands_still_is_ended(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the second one, which has no time to start here."""
    process = process_of(trial)
    os.kill(process, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(module, "STILL_SECONDS", 0.001)
        with pytest.raises(Exception, match="the process that tries grammars stood still"):
            trial.compile(good())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    trial.compile(good())
