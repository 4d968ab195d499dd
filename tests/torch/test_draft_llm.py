"""A draft model beside a model, from folders to text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from command import refused, run_text
from quire.core.errors import DoesNotFit, InputError
from quire.core.events import TokensDrafted
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

torch.set_num_threads(1)
POOL = Budget(pool_bytes=4 << 20)
SETTINGS = Settings(max_requests=4, batch_tokens=64, max_length=256)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a draft model that equals it."""
    own, other = (tmp_path_factory.mktemp(name) for name in ("model", "draft"))
    return make_folder(own), make_folder(other)


def test_answers_are_those_of_the_model_alone(folders: tuple[Path, Path]) -> None:
    model, draft = folders
    alone = LLM(model, settings=SETTINGS, budget=POOL)
    both = LLM(model, settings=SETTINGS, budget=POOL, draft_model=draft, draft_tokens=3)
    prompts = ["the quick brown fox", "a dog sees"]
    expected = [answer.text for answer in alone.generate(prompts, max_tokens=24)]
    assert [answer.text for answer in both.generate(prompts, max_tokens=24)] == expected
    sums = both.engine.counters.sums
    assert sums[TokensDrafted, "accepted"] == sums[TokensDrafted, "drafted"] > 0
    assert both.plan.bytes_per_token == 2 * alone.plan.bytes_per_token
    assert both.plan.lookahead == 3


def test_a_draft_model_with_another_tokenizer_is_refused_by_name(folders: tuple[Path, Path], tmp_path: Path) -> None:
    draft = make_folder(tmp_path)
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=f"draft model {draft.name} numbers 2 of its .* otherwise than"):
        LLM(folders[0], settings=SETTINGS, budget=POOL, draft_model=draft)


def test_a_pool_that_holds_the_model_alone_is_refused_before_weights_are_read(folders: tuple[Path, Path]) -> None:
    model, draft = folders
    need = LLM(model, settings=SETTINGS, budget=POOL).plan
    tight = Budget(pool_bytes=int(256 * 1.5 * need.bytes_per_token))
    LLM(model, settings=SETTINGS, budget=tight)
    with pytest.raises(DoesNotFit, match="256 tokens need"):
        LLM(model, settings=SETTINGS, budget=tight, draft_model=draft)


def test_the_command_line_says_how_many_guesses_came_true(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, draft = map(str, folders)
    asked = [
        "generate",
        "--prompt",
        "the fox",
        "--max-tokens",
        "12",
        "--max-length",
        "256",
        "--pool",
        "4MiB",
        "--stats",
    ]
    alone, _ = run_text(capsys, *asked, model)
    text, said = run_text(capsys, *asked, model, "--draft-model", draft, "--draft-tokens", "2")
    assert text == alone
    assert "accepted, 100%" in said


def test_a_number_of_guesses_without_a_model_to_make_them_is_refused(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "generate", "--prompt", "the fox", str(folders[0]), "--draft-tokens", "2")
    assert "--draft-model" in said
