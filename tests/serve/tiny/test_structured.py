"""Answers that follow a grammar, under every name that clients have for one."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from serve_kit import CHAT, body, chat

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"]}
CLOSED = {**SCHEMA, "additionalProperties": False}
REGEX = "(north|south), [0-9]{1,3} km"
GBNF = 'root ::= "a" digit digit\ndigit ::= [0-9]'
LARK = "start: /a[0-9][0-9]/"
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "@f>", "schema": CLOSED, "end": "</f>"}],
    "triggers": ["@"],
}


def follows_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), CLOSED)
    return True


@pytest.mark.parametrize(
    ("field", "value", "follows"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": CLOSED}}, follows_schema),
        ("structured_outputs", {"json": CLOSED}, follows_schema),
        ("structured_outputs", {"json": json.dumps(CLOSED)}, follows_schema),
        ("guided_json", CLOSED, follows_schema),
        ("guided_json", json.dumps(CLOSED), follows_schema),
        ("structured_outputs", {"regex": REGEX}, re.compile(REGEX).fullmatch),
        ("guided_regex", REGEX, re.compile(REGEX).fullmatch),
        ("regex", REGEX, re.compile(REGEX).fullmatch),
        ("structured_outputs", {"choice": ["yes", 'no "é"']}, {"yes", 'no "é"'}.__contains__),
        ("guided_choice", ["yes", 'no "é"'], {"yes", 'no "é"'}.__contains__),
        ("structured_outputs", {"grammar": GBNF}, re.compile("a[0-9]{2}").fullmatch),
        ("guided_grammar", LARK, re.compile("a[0-9]{2}").fullmatch),
        ("ebnf", GBNF, re.compile("a[0-9]{2}").fullmatch),
    ],
)
def test_an_answer_follows_its_grammar_in_chats_and_completions(
    client: httpx.Client, field: str, value: Any, follows: Any
) -> None:
    answer = chat(client, max_tokens=60, **{field: value}).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert follows(answer["message"]["content"])
    asked = {"model": "tiny", "prompt": "the fox", "max_tokens": 60, field: value}
    completed = client.post("/v1/completions", json=asked).json()["choices"][0]
    assert completed["finish_reason"] == "stop"
    assert follows(completed["text"])


@pytest.mark.parametrize(
    ("field", "value"), [("response_format", TAGS), ("structured_outputs", {"structural_tag": json.dumps(TAGS)})]
)
def test_a_tag_that_begins_in_the_text_is_completed_by_its_schema(client: httpx.Client, field: str, value: Any) -> None:
    """The beginning of the tag is made likely, and the rest follows from the grammar."""
    (token,) = client.post("/v1/tokenize", json={"prompt": "@", "add_special_tokens": False}).json()["tokens"]
    answer = chat(client, max_tokens=40, temperature=0, logit_bias={str(token): 100}, **{field: value})
    text = answer.json()["choices"][0]["message"]["content"]
    assert re.match(r'@f>\{"n": [0-9]{1,2}\}</f>', text), text


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"regex": "a", "guided_choice": ["b"]}, "regex", "guided_choice and regex both say"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format", "regex and response_format"),
        ({"regex": "("}, "regex", "cannot be used"),
        ({"ebnf": "root ::= ("}, "ebnf", "ebnf is neither Lark nor GBNF"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "cannot be used"),
        ({"guided_json": "{"}, "guided_json", "the json grammar is not JSON"),
        ({"guided_choice": []}, "guided_choice", "give at least 1 item"),
        ({"regex": "a" * 70_000}, "regex", "the schema has 70,000 characters, 65,536 may be"),
        ({"response_format": {**TAGS, "triggers": ["#"]}}, "response_format", "starts with none of the triggers"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "no structural tag"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs.disable_any_whitespace", "not"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_by_its_own_name(
    client: httpx.Client, change: dict[str, Any], param: str, words: str
) -> None:
    answer = client.post(CHAT, json=body(max_tokens=4, **change))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


def test_a_token_of_ones_own_ends_the_answer(client: httpx.Client) -> None:
    """As an end of text does: it has no text, and is counted."""
    asked = {
        "model": "tiny",
        "prompt": "the fox",
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": 0,
        "ignore_eos": True,
    }
    free = client.post("/v1/completions", json=asked).json()["choices"][0]
    words = free["logprobs"]["tokens"]
    place = next(place for place, word in enumerate(words) if word not in words[:place] and place > 2)
    every = client.post("/v1/tokenize", json={"prompt": words[place], "add_special_tokens": False}).json()["tokens"]
    stopped = client.post("/v1/completions", json={**asked, "stop_token_ids": every}).json()
    choice = stopped["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert len(choice["text"]) < len(free["text"])
    assert free["text"].startswith(choice["text"])
    assert stopped["usage"]["completion_tokens"] <= place + 1


def test_an_answer_continues_an_assistants_message(client: httpx.Client) -> None:
    """The prompt ends within it: the answer is that of a completion of the same text."""
    messages = [{"role": "user", "content": "the fox?"}, {"role": "assistant", "content": "the dog "}]
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    continued = chat(client, messages=messages, continue_final_message=True, **asked).json()
    text = "<|user|>the fox?<|end|><|assistant|>the dog"
    tokens = client.post("/v1/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    completed = client.post("/v1/completions", json={"model": "tiny", "prompt": tokens, **asked}).json()
    assert continued["choices"][0]["message"]["content"] == completed["choices"][0]["text"]
    assert continued["usage"]["prompt_tokens"] == len(tokens)
    as_at_vllm = {"continue_final_message": True, "add_generation_prompt": False}
    same = chat(client, messages=messages, **as_at_vllm, **asked).json()
    assert same["choices"][0]["message"]["content"] == continued["choices"][0]["message"]["content"]
    both = chat(client, messages=messages, continue_final_message=True, add_generation_prompt=True).json()["error"]
    assert (both["param"], both["code"]) == ("add_generation_prompt", "invalid_value")
    refused = chat(client, messages=messages[:1], continue_final_message=True).json()["error"]
    assert (refused["param"], "give it the role assistant" in refused["message"]) == ("messages", True)


@pytest.mark.story
def test_a_prompt_ends_with_the_last_message_if_no_answer_shall_begin(client: httpx.Client) -> None:
    """vLLM's clients send false with continue_final_message too: it was refused."""
    tokens = [chat(client, max_tokens=1, add_generation_prompt=begins).json() for begins in (True, False)]
    begun, ended = (answer["usage"]["prompt_tokens"] for answer in tokens)
    assert begun == chat(client, max_tokens=1).json()["usage"]["prompt_tokens"]
    assert ended < begun


def test_ignored_fields_are_named_and_usage_can_run_along(client: httpx.Client) -> None:
    answer = chat(client, max_tokens=2, best_of=1, top_k=-1, reasoning_effort="low", rid="x")
    assert answer.status_code == 200
    assert answer.headers["x-quire-ignored"] == "best_of, rid, reasoning_effort"
    assert "x-quire-ignored" not in chat(client, max_tokens=2).headers
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = body(max_tokens=4, stream=True, stream_options=options, ignore_eos=True)
    with client.stream("POST", CHAT, json=asked) as stream:
        chunks = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert counts[0] >= 1
