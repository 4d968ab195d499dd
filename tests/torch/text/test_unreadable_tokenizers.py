"""A tokenizer that grammars cannot be compiled for: everything else works, and a grammar is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders

from quire import LLM, Sampling
from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

ASKED = Sampling(grammar=Grammar(GrammarSort.JSON, '{"type": "integer"}'))
REFUSAL = r"grammars cannot be used with the tokenizer of odd, which llguidance cannot read \(can't determine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the decoder of some SentencePiece conversions: pieces are joined, their marks become blanks."""
    folder = tmp_path_factory.mktemp("models") / "odd"
    folder.mkdir()
    make_folder(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u0120", " "), decoders.Fuse()])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.story
def test_an_llm_answers_and_refuses_grammars_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It used to stop at the start. The warning comes once, the refusal within the call that asks for a grammar."""
    with caplog.at_level(logging.WARNING, "quire.text"):
        llm = LLM(folder, settings=Settings(max_length=64, max_requests=2), budget=Budget(pool_bytes=2 << 20))
    (warning,) = caplog.messages
    with pytest.raises(InputError, match=REFUSAL) as refused:
        llm.generate("the fox", ASKED, max_tokens=4)
    assert str(refused.value) == warning
    assert warning.endswith("ask without a response format or forced tools")
    (answer,) = llm.generate("the fox", Sampling(ignore_eos=True), max_tokens=4)
    assert len(answer.token_ids) == 4


@pytest.mark.story
def test_the_command_generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(folder), "--pool", "2MiB", "--max-length", "64", "--raw", "--prompt", "the fox"]
    assert main([*command, "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out.strip()
