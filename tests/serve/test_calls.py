"""Calls that do not come to be: what is refused before the engine hears of it, and an engine that is not there."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from quire.core.errors import InputError, QuireError
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.serve.allowance import Allowances
from quire.serve.app import make_app
from quire.serve.away import EngineStarting
from quire.serve.calls import Call, Deltas
from quire.serve.errors import ApiError
from quire.serve.formats import ChatFormat, Extras
from quire.serve.generation import _Reply
from quire.serve.keys import EVERYBODY, Tenant
from quire.serve.messages import RequestUpdate
from quire.serve.pending import PendingRequest, Updates
from quire.serve.questions import BodyReader
from quire.serve.schemas import ChatBody, CompletionBody
from quire.serve.service import Service
from quire.serve.turns import Turns
from quire.text.question import Question
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer
from scenes_of_tiers import small_plan


@pytest.mark.parametrize(("given", "priority"), [({}, 0), ({"priority": None}, 0), ({"priority": -3}, -3)])
def test_a_priority_reaches_the_engine_of_chats_and_completions(
    tiny_folder: Path, given: dict[str, Any], priority: int
) -> None:
    """Greater goes first, as in the library."""
    tokenizer = Tokenizer.load(tiny_folder)
    reader = BodyReader(tokenizer, small_plan(["full"]), "tiny", 320)
    chat = ChatBody.model_validate({"model": "tiny", "messages": [{"role": "user", "content": "x"}], **given})
    completion = CompletionBody.model_validate({"model": "tiny", "prompt": ["x", "y"], **given})
    for question in (reader.chat(chat), reader.completion(completion)):
        requests = question.requests(map(str, count()), tokenizer)
        assert {request.priority for request in requests} == {priority}


class AbsentEngine:
    """A client of an engine that takes nothing."""

    def submit(self, _requests: Any, _updates: Any, _span: Any) -> None:
        raise EngineStarting("the engine is not ready")

    def cancel(self, tickets: list[Any]) -> None:
        assert not tickets


@pytest.mark.story
def test_a_chat_that_its_template_makes_nothing_of_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_folder / "tokenizer.json", tmp_path)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))
    reader = BodyReader(Tokenizer.load(tmp_path), small_plan(["full"]), "tiny", 320)
    said = {"model": "tiny", "messages": [{"role": "user", "content": ""}]}
    with pytest.raises(ApiError, match="the prompt has 0 tokens: give at least 1") as refused:
        reader.chat(ChatBody.model_validate(said))
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_value", "messages")


@pytest.mark.story
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}, "auto"])
def test_a_schema_that_cannot_be_used_is_blamed_on_the_field_it_came_in(choice: Any, tiny_folder: Path) -> None:
    bad = {"type": "nonsense"}
    reader = BodyReader(Tokenizer.load(tiny_folder), small_plan(["full"]), "tiny", 320)
    said = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tool_choice": choice}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"} if choice == "auto" else bad}}
    ]
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": bad}}}
    with pytest.raises(ApiError) as refused:
        reader.chat(ChatBody.model_validate({**said, "tools": tools, **(wanted if choice == "auto" else {})}))
    reader._trial.close()
    field = "response_format" if choice == "auto" else "tools"
    assert (refused.value.code, refused.value.param) == ("invalid_schema", field)


@pytest.mark.story
@pytest.mark.parametrize(("tokens", "sort", "code"), [(3, ApiError, "engine_starting"), (0, InputError, None)])
def test_a_call_that_is_not_taken_keeps_no_place_and_is_away_only_where_the_engine_is(
    tokens: int, sort: type[QuireError], code: str | None, tiny_folder: Path
) -> None:
    """What is wrong with the call itself is not told as the engine's absence."""
    allowances, tokenizer = Allowances(8), Tokenizer.load(tiny_folder)
    question = Question((np.arange(tokens, dtype=np.int32),), ("",), (20,), Sampling(), 2)
    with pytest.raises(sort) as refused:
        Call(question, EVERYBODY, AbsentEngine(), allowances, tokenizer, seconds=1.0)  # type: ignore[arg-type]
    assert getattr(refused.value, "code", None) == code
    assert allowances.total == 0


@pytest.mark.story
def test_a_call_that_is_not_taken_costs_no_tokens(tiny_folder: Path) -> None:
    tenant = Tenant("t", "t", tokens_per_minute=100)
    allowances, tokenizer = Allowances(8, lambda: 0.0), Tokenizer.load(tiny_folder)
    question = Question((np.arange(60, dtype=np.int32),), ("",), (20,), Sampling(), 1)
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            Call(question, tenant, AbsentEngine(), allowances, tokenizer, seconds=1.0)  # type: ignore[arg-type]
        assert refused.value.code == "engine_starting"


class RefusingEngine:
    """Takes a call of two choices in, then refuses one of them."""

    def __init__(self, refused: RequestUpdate, before: RequestUpdate) -> None:
        self._news = [before, refused]

    def submit(self, requests: list[Request], updates: Updates, _span: Any) -> list[PendingRequest]:
        pairs = enumerate(zip(requests, self._news, strict=True))
        tickets = [PendingRequest(one, updates, place, hit_tokens=came.hit_tokens) for place, (one, came) in pairs]
        for ticket, came in zip(tickets, self._news, strict=True):
            updates.put((ticket, came))
        return tickets

    def cancel(self, _tickets: list[Any]) -> None:
        pass


@pytest.mark.story
@pytest.mark.parametrize(
    "refused", [RequestUpdate("", refusal="full", is_queue_full=True), RequestUpdate("", refusal="no")]
)
@pytest.mark.parametrize(
    ("before", "left"), [(RequestUpdate(""), 200), (RequestUpdate("", tokens=(5, 6, 7), hit_tokens=0), 77)]
)
def test_a_call_that_the_engine_refuses_costs_no_tokens_unless_some_of_it_ran(
    tiny_folder: Path, refused: RequestUpdate, before: RequestUpdate, left: int
) -> None:
    tenant = Tenant("t", "t", tokens_per_minute=200)
    allowances, tokenizer = Allowances(8, lambda: 0.0), Tokenizer.load(tiny_folder)
    question = Question((np.arange(60, dtype=np.int32),), ("",), (20,), Sampling(), 2)

    async def read() -> None:
        call = Call(question, tenant, RefusingEngine(refused, before), allowances, tokenizer, seconds=9.0)  # type: ignore[arg-type]
        async for _ in call.deltas():
            pass

    with pytest.raises(ApiError) as error:
        asyncio.run(read())
    assert error.value.code in ("queue_full", "refused")
    assert allowances._tokens["t"][0] == left


# ── in a thread ────────────────────────────────────────────────


class NotingReader:
    """Notes the thread in which a body is read."""

    def __init__(self) -> None:
        self.thread = ""

    def note(self, *_: Any, **_more: Any) -> Any:
        self.thread = threading.current_thread().name
        return np.arange(3)

    chat = completion = encode = render = require_model = note


class NotingService(Service):
    """Takes nothing."""

    def __init__(self) -> None:
        self.reader = NotingReader()  # type: ignore[assignment]
        self.plan = small_plan(["full"])
        self._turns = Turns()

    def begin(self, *_: Any) -> Any:
        raise ApiError(503, "not now", "draining")


def answered(service: Service, path: str, body: dict[str, Any]) -> httpx.Response:
    app = make_app(service)

    async def let_in(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"record": {}, "tenant": EVERYBODY, "request_id": "r"}
        await app(scope, receive, send)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(let_in, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, json=body)

    return asyncio.run(ask())


def read_in(path: str, body: dict[str, Any]) -> str:
    """The thread."""
    service = NotingService()
    assert answered(service, path, body).status_code in (200, 503)
    return service.reader.thread  # type: ignore[attr-defined,no-any-return]


@pytest.mark.story
def test_a_bug_has_the_form_of_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    service = NotingService()
    monkeypatch.setattr(service, "read", None)
    answer = answered(service, "/v1/tokenize", {"prompt": "x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (500, "internal_error", "server_error")


@pytest.mark.story
def test_a_bug_in_the_middle_of_a_stream_is_its_last_event_and_no_client_that_left() -> None:
    closed: list[bool] = []
    call: Any = SimpleNamespace(
        answers=[], is_over=False, question=None, close=lambda: closed.append(True), record=dict
    )
    form = ChatFormat(call, {"id": "id"}, cast(Spelling, None), Extras())
    record: dict[str, Any] = {}

    async def broken() -> AsyncIterator[Deltas]:
        raise KeyError("a bug")
        yield []

    pieces: list[bytes] = []

    async def read() -> None:
        async for piece, _more in _Reply(call, form, record, False).pieces([], broken()):
            pieces.append(piece)

    with pytest.raises(KeyError):
        asyncio.run(read())
    assert json.loads(pieces[-1].removeprefix(b"data: "))["error"]["code"] == "internal_error"
    assert record == {"error": "internal_error"}
    assert closed


@pytest.mark.story
@pytest.mark.parametrize("words", [1, 20_000])
def test_long_bodies_are_read_in_a_thread_wherever_their_length_lies(words: int) -> None:
    text, said = "the fox " * words, {"role": "user", "content": "x"}
    call = {"id": "a", "function": {"name": "f", "arguments": text}}
    called = {"role": "assistant", "tool_calls": [call]}
    threads = [
        read_in("/v1/chat/completions", {"model": "tiny", "messages": [{**said, "content": text}]}),
        read_in("/v1/chat/completions", {"model": "tiny", "messages": [said, called]}),
        read_in("/v1/completions", {"model": "tiny", "prompt": [7] * words}),
        read_in("/v1/tokenize", {"prompt": text}),
        read_in("/v1/tokenize", {"messages": [said, called]}),
    ]
    assert threads == ["MainThread" if words == 1 else "asking_0"] * 5
