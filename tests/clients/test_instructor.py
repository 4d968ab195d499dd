"""`instructor`: models of pydantic by tools and by schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asked import GREEDY, QUESTION, City

instructor = pytest.importorskip("instructor", reason="the package instructor is not installed")
openai = pytest.importorskip("openai", reason="the package openai is not installed")


@pytest.fixture(params=["TOOLS", "JSON_SCHEMA"])
def client(request: pytest.FixtureRequest, v1: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=v1, api_key="none", max_retries=0) as plain:
        yield instructor.from_openai(plain, mode=getattr(instructor.Mode, request.param))


def test_a_model_of_pydantic_is_returned_at_the_first_attempt(client: Any) -> None:
    """`max_retries=0`: an answer that does not validate is an error."""
    city = client.chat.completions.create(
        messages=QUESTION, response_model=City, max_retries=0, max_tokens=60, **GREEDY
    )
    assert isinstance(city, City)


def test_a_partial_model_grows_to_the_whole(client: Any) -> None:
    """The last of the streamed states is complete."""
    states = list(
        client.chat.completions.create_partial(
            messages=QUESTION, response_model=City, max_retries=0, max_tokens=60, **GREEDY
        )
    )
    City.model_validate(states[-1].model_dump())
