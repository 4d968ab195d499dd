"""npm's `openai`, and the AI SDK with three of its providers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, MODEL, TEXT, WARM, WEATHER_PARAMETERS, City, is_weather
from commands import output_of

HERE = Path(__file__).parent


def printed_by(script: str, v1: str, **more: Any) -> Any:
    """What a script of this folder prints; skipped, with the reason, where Node or its packages are missing."""
    node = shutil.which("node") or pytest.skip("the command node is not installed")
    if not (HERE / "node_modules").exists():
        pytest.skip("the packages of tests/clients/package.json are not installed")
    given = {"v1": v1, "model": MODEL, "text": TEXT, "warm": WARM, "parameters": WEATHER_PARAMETERS, **more}
    return json.loads(output_of(node, script, json.dumps(given), folder=HERE))


def test_openai_of_npm_chats_and_responds(v1: str) -> None:
    """Whole and streamed, with a required tool."""
    found = printed_by("openai.mjs", v1)
    assert is_weather(found.pop("arguments"))
    assert found.pop("usage") == ANSWER_TOKENS
    assert set(found) == {"chat", "streamed", "response", "deltas"}
    assert set(found.values()) == {ANSWER}


@pytest.mark.parametrize("provider", ["openai", "compatible", "anthropic"])
def test_the_ai_sdk_has_text_tools_and_objects(v1: str, provider: str) -> None:
    """`openai` uses responses, `compatible` chats, `anthropic` messages."""
    schema = {**City.model_json_schema(), "additionalProperties": False}
    found = printed_by("ai-sdk.mjs", v1, provider=provider, city=schema)
    assert "".join(found["pieces"]) == found["text"] == ANSWER
    assert len(found["pieces"]) > 3
    assert found["usage"] == ANSWER_TOKENS
    assert is_weather(found["input"])
    assert found["streamed"] == found["input"]
    City.model_validate(found["object"])
