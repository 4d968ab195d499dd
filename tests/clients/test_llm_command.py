"""`llm`, with the server as an extra OpenAI model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asked import ANSWER, MODEL, TEXT, City
from commands import command, output_of

Ask = Callable[..., str]
FILE = """\
- model_id: quire
  model_name: {model}
  api_base: {address}
  supports_schema: true
  supports_tools: true
"""
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "60")


@pytest.fixture
def ask(v1: str, tmp_path: Path) -> Ask:
    """Runs `llm` with a configuration of its own."""
    (tmp_path / "extra-openai-models.yaml").write_text(FILE.format(model=MODEL, address=v1))
    return functools.partial(
        output_of, command("llm"), "-m", "quire", *GREEDY, folder=tmp_path, LLM_USER_PATH=str(tmp_path)
    )


@pytest.mark.parametrize("how", [(), ("--no-stream",)], ids=["stream", "whole"])
def test_a_prompt_is_answered(ask: Ask, how: tuple[str, ...]) -> None:
    """Streamed, as by default, and whole."""
    assert ask(TEXT, *how).strip() == ANSWER


def test_a_schema_is_followed(ask: Ask) -> None:
    """A JSON schema on the command line."""
    City.model_validate_json(ask(TEXT, "--schema", json.dumps(City.model_json_schema())))


def test_tools_may_be_offered(ask: Ask) -> None:
    """The model decides whether it calls one; the chain of calls ends without an error."""
    ask(TEXT, "--functions", "def weather(city: str) -> str:\n    return '30 degrees'\n")
