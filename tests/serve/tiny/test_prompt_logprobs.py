"""Log-probabilities of prompts over HTTP, in the forms that clients of other servers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.core.sampling import Sampling
from quire.plan.settings import Budget, Settings
from quire.text.tokenizer import Tokenizer
from serve_kit import chat

COMPLETIONS = "/v1/completions"
PROMPT = "the quick brown fox sees the lazy dog"


@pytest.fixture(scope="module")
def expected(tiny_folder: Path) -> list[Any]:
    """Of the prompt's tokens from the second on, by the library on the same weights."""
    from quire import LLM

    llm = LLM(tiny_folder, settings=Settings(max_length=512), budget=Budget(pool_bytes=2 << 20), device="cpu")
    tokens = Tokenizer.load(tiny_folder).encode(PROMPT)
    (answer,) = llm.generate([tokens], max_tokens=1, sampling=Sampling(prompt_logprobs=3))
    assert answer.prompt_logprobs is not None
    return list(answer.prompt_logprobs)


def complete(client: httpx.Client, **change: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "echo": True, "logprobs": 3, "max_tokens": 1}
    answer = client.post(COMPLETIONS, json={**asked, **change})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_an_echo_has_the_log_probabilities_that_the_library_reports(client: httpx.Client, expected: list[Any]) -> None:
    """One more than the prompt has tokens: the last is the answer's. The first token has none."""
    choice = complete(client)["choices"][0]
    found = choice["logprobs"]
    values = found["token_logprobs"]
    assert (values[0], found["top_logprobs"][0]) == (None, None)
    assert values[1:-1] == pytest.approx([one.logprob for one in expected], abs=1e-4)
    for top, one in zip(found["top_logprobs"][1:-1], expected, strict=True):
        assert max(top.values()) == pytest.approx(one.top[0].logprob, abs=1e-4)
    assert "".join(found["tokens"][:-1]) == PROMPT
    assert choice["text"].startswith(PROMPT)
    for place, word in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][place:].startswith(word)


def test_of_no_tokens_the_prompt_comes_back_alone(client: httpx.Client, expected: list[Any]) -> None:
    answer = complete(client, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(expected) + 1
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == len(expected) + 1


def test_a_cached_prompt_has_them_as_well(client: httpx.Client) -> None:
    """Positions whose keys are cached have no logits: the prompt is computed again."""
    first = complete(client, max_tokens=0)
    assert complete(client, max_tokens=0)["choices"] == first["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_several_prompts_and_samples_have_their_own(client: httpx.Client) -> None:
    prompts = [PROMPT, "a dog", PROMPT + " again"]
    alone = [complete(client, prompt=prompt, max_tokens=0)["choices"][0] for prompt in prompts]
    together = complete(client, prompt=prompts, max_tokens=0, n=2)["choices"]
    assert [one["index"] for one in together] == list(range(6))
    for index, choice in enumerate(together):
        assert choice["text"] == alone[index // 2]["text"]
        assert choice["logprobs"]["tokens"] == alone[index // 2]["logprobs"]["tokens"]
        values = [one["logprobs"]["token_logprobs"][1:] for one in (choice, alone[index // 2])]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def test_a_stream_has_in_pieces_what_the_whole_answer_has(client: httpx.Client) -> None:
    whole = complete(client, max_tokens=6)["choices"][0]
    asked = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "echo": True, "logprobs": 3, "max_tokens": 6}
    pieces = []
    with client.stream("POST", COMPLETIONS, json={**asked, "stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0])
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    for name in ("tokens", "text_offset"):
        assert [one for piece in pieces for one in piece["logprobs"][name]] == whole["logprobs"][name]


def test_they_come_in_vllms_form_for_chats_and_completions(client: httpx.Client, expected: list[Any]) -> None:
    """By token: log-probability, rank and text; one entry more if the token is not among the likeliest."""
    of_completion = complete(client, echo=False, logprobs=None, prompt_logprobs=3)["choices"][0]["prompt_logprobs"]
    assert of_completion[0] is None
    for found, one in zip(of_completion[1:], expected, strict=True):
        own = found[str(one.token)]
        assert own["logprob"] == pytest.approx(one.logprob, abs=1e-4)
        assert own["decoded_token"] == one.text
        assert own["rank"] == one.rank
        assert len(found) == (3 if one.rank <= 3 else 4)
    answer = chat(client, prompt_logprobs=0, max_tokens=1).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(one) == 1 for one in answer["prompt_logprobs"][1:])


@pytest.mark.parametrize(
    ("change", "field"), [({"prompt_logprobs": 1}, "prompt_logprobs"), ({"echo": True, "logprobs": 1, "n": 2}, "n")]
)
def test_what_cannot_be_streamed_is_refused_by_name(client: httpx.Client, change: dict[str, Any], field: str) -> None:
    answer = client.post(COMPLETIONS, json={"model": "tiny", "prompt": PROMPT, "stream": True, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
