"""What every client is asked, and what a greedy server of the default model answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

MODEL = "smollm2-135m-instruct"
TEXT = "What is the capital of France?"
QUESTION: list[Any] = [{"role": "user", "content": TEXT}]
ANSWER = "The capital of France is Paris."
PROMPT_TOKENS, ANSWER_TOKENS = 37, 8
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
WARM = "Is it warm in Rome?"
WAIT_SECONDS = 300
"""For one command of a client. No test says how fast a client or the server is."""


class City(BaseModel):
    """A city, small enough for an answer of few tokens."""

    name: str = Field(max_length=10)
    people: int = Field(ge=0, le=99)


WEATHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city", "parameters": WEATHER_PARAMETERS},
}


def is_weather(arguments: dict[str, Any]) -> bool:
    """Whether these arguments match `WEATHER_PARAMETERS`."""
    city = arguments.get("city")
    is_city = isinstance(city, str) and len(city) <= 12
    return is_city and arguments.get("unit") in ("C", "F") and len(arguments) == 2
