"""`quire chat` and `quire generate`: what is typed, before any model answers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from command import refused
from quire.cli import chat
from quire.cli.main import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that reach the model."""
    seen: list[str] = []

    def stream(messages: list[dict[str, Any]], *_more: Any, **_options: Any) -> Iterator[str]:
        seen.append(messages[-1]["content"])
        yield "an answer"

    llm = SimpleNamespace(plan=SimpleNamespace(model="tiny"), stream=stream, close=lambda: None)
    monkeypatch.setattr(chat, "start", lambda _options: llm)
    monkeypatch.setattr(chat, "fitting", lambda *_given: 1)
    return seen


@pytest.mark.parametrize("last", ["", "/exit", EOFError()])
def test_a_chat_says_how_to_leave_and_answers_help_itself(
    asked: list[str], last: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["hello", "/help", "/help me", last])

    def type_next(_prompt: str) -> str:
        line = next(typed)
        if isinstance(line, EOFError):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", type_next)
    assert main(["chat"]) == 0
    printed = capsys.readouterr()
    assert asked == ["hello", "/help me"]
    assert "an empty line leaves, /help lists commands" in printed.err
    assert "Ctrl-D" in printed.err
    assert "Ctrl-D" not in printed.out


@pytest.mark.story
def test_a_question_in_the_models_place_is_offered_as_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "Why is the sky blue?"
    assert f"did you mean quire generate --prompt '{asked}'?" in refused(capsys, "generate", asked)
    assert 'give --prompt "…", or --prompt -' in refused(capsys, "generate", "some-folder")
    assert 'give --prompt "…", or --prompt -' in refused(capsys, "generate")
