"""Clients that use every API at once: they stream, disconnect, cancel, abort, send invalid bodies and flood. For tests
and `make soak-serve`."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx

Json = dict[str, Any]
STALL_SECONDS = 60.0
"""A call that gets neither an answer nor an end within this time has stalled."""
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
NONSENSE = (
    b"{", b"null", b'{"model": 3}', b'{"messages": "x"}', b"\x00\xff", b'{"model": "x", "messages": []}', b"[" * 5000,
    b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 1e9}', b'{"model": "tiny", "input": [3]}',
    b'{"model": "tiny", "prompt": [-1]}', b'{"tokens": [1e99]}', b"",
)  # fmt: skip
CITY: Json = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"]}
FUNCTION: Json = {"name": "f", "parameters": CITY}
TOOLS: Json = {"tools": [{"type": "function", "function": FUNCTION}]}
NAMED: Json = {"type": "function", "function": {"name": "f"}}
ALLOWED: Json = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
AS_CITY: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
FLAT_TOOLS: Json = {"tools": [{"type": "function", **FUNCTION}]}
VARIATIONS: dict[str, tuple[Json, ...]] = {
    CHAT: (
        {"temperature": 0.7, "n": 3},
        {"logprobs": True, "top_logprobs": 3, "stop": ["fox"]},
        {**TOOLS, "tool_choice": "required"},
        {**TOOLS, "tool_choice": ALLOWED, "parallel_tool_calls": False},
        {**TOOLS},
        {"response_format": AS_CITY},
        {"guided_regex": "[a-f]{1,9}"},
        {"guided_choice": ["the fox", "the dog"]},
        {"prompt_logprobs": 1},
        {"continue_final_message": False, "reasoning_effort": "low", "top_k": -1},
    ),
    COMPLETIONS: (
        {"n": 2},
        {"echo": True, "logprobs": 2, "max_tokens": 0},
        {"echo": True, "logprobs": 1},
        {"prompt": [5, 6, 7, 8]},
        {"prompt": ["the fox", "the dog"], "logprobs": 3},
        {"guided_grammar": 'start: "fox" | "dog"'},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    RESPONSES: (
        {"store": False},
        {"instructions": "Be brief."},
        {**FLAT_TOOLS, "tool_choice": "required"},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY}}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    MESSAGES: (
        {"system": "Be brief.", "stop_sequences": ["fox"]},
        {"tools": [{"name": "f", "input_schema": CITY}], "tool_choice": {"type": "any"}},
        {"top_k": 5, "temperature": 0.5},
    ),
}
"""By path: what a call may say in addition. A call that cannot be streamed is refused."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One client, with its key."""

    client: httpx.AsyncClient
    headers: dict[str, str]


class Crowd:
    def __init__(self, address: str, model: str, keys: Sequence[str | None], clients: int, seed: int = 0) -> None:
        self._address, self._model, self._keys, self._clients = address, model, keys, clients
        self._random, self._names = random.Random(seed), count()
        self.statuses: Counter[int] = Counter()
        self.answered: Counter[str] = Counter()
        """Calls that were answered with 200, by way and path."""
        self.left = self.cut = self.stalls = self.lost_progress = 0
        self.calls = 0
        self.ways: dict[str, Callable[[Caller], Awaitable[None]]] = {
            "whole": self._whole, "stream": self._stream, "leave": self._leave, "gzip": self._gzip,
            "converse": self._converse, "cancel": self._cancel, "abort": self._abort, "tokens": self._tokens,
            "nonsense": self._nonsense, "too long": self._too_long, "flood": self._flood,
        }  # fmt: skip

    def run(self, seconds: float, watch: Callable[[], bool]) -> None:
        """`watch` is asked all the while whether there is progress."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(watch, is_over))
        watcher.start()
        try:
            asyncio.run(self._run(time.monotonic() + seconds))
        finally:
            is_over.set()
            watcher.join()

    def _watch(self, watch: Callable[[], bool], is_over: threading.Event) -> None:
        while not is_over.wait(0.25):
            self.lost_progress += not watch()

    async def _run(self, end: float) -> None:
        limits = httpx.Limits(max_connections=2 * self._clients, max_keepalive_connections=self._clients // 2)
        async with httpx.AsyncClient(base_url=self._address, timeout=STALL_SECONDS, limits=limits) as client:
            callers = [Caller(client, self._headers(self._keys[i % len(self._keys)])) for i in range(self._clients)]
            await asyncio.gather(*(self._behave(caller, end) for caller in callers))

    def _headers(self, key: str | None) -> dict[str, str]:
        return {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    async def _behave(self, caller: Caller, end: float) -> None:
        while time.monotonic() < end:
            self.calls += 1
            way = self._random.choice(list(self.ways))
            try:
                await self.ways[way](caller)
            except (httpx.ReadTimeout, httpx.PoolTimeout):
                self.stalls += 1
            except httpx.TransportError:
                self.cut += 1

    # ── bodies ────────────────────────────────────────────────────────────

    def _body(self, path: str, **change: Any) -> Json:
        words = " ".join(self._random.choices(["the", "quick", "fox", "dog", "sees"], k=self._random.randint(1, 60)))
        tokens, said = self._random.randint(1, 60), [{"role": "user", "content": words}]
        prompt: Json = {
            CHAT: {"messages": said, "max_tokens": tokens, "ignore_eos": True},
            COMPLETIONS: {"prompt": words, "max_tokens": tokens, "ignore_eos": True},
            RESPONSES: {"input": words, "max_output_tokens": tokens, "ignore_eos": True},
            MESSAGES: {"messages": said, "max_tokens": tokens},
        }[path]
        return {"model": self._model, **prompt, **change}

    def _any(self, **change: Any) -> tuple[str, Json]:
        path = self._random.choice(list(VARIATIONS))
        return path, self._body(path, **self._random.choice(VARIATIONS[path]), **change)

    # ── ways ──────────────────────────────────────────────────────────────

    async def _post(self, caller: Caller, path: str, body: Json | None, way: str = "") -> Any:
        content = None if body is None else json.dumps(body)
        return self._seen(await caller.client.post(path, content=content, headers=caller.headers), path, way)

    def _seen(self, answer: httpx.Response, path: str, way: str) -> Any:
        """Its JSON if the call was answered."""
        self._note(answer.status_code, path, way)
        return answer.json() if answer.status_code == 200 else None

    def _note(self, status: int, path: str, way: str) -> None:
        self.statuses[status] += 1
        self.answered[f"{way} {path}".strip()] += status == 200

    async def _whole(self, caller: Caller) -> None:
        path, body = self._any()
        await self._post(caller, path, body, "whole")

    async def _gzip(self, caller: Caller) -> None:
        path, body = self._any()
        headers = {**caller.headers, "content-encoding": "gzip"}
        content = gzip.compress(json.dumps(body).encode())
        self._seen(await caller.client.post(path, content=content, headers=headers), path, "gzip")

    async def _stream(self, caller: Caller, most: int = 1 << 30, way: str = "stream") -> None:
        path, body = self._any(stream=True)
        async with caller.client.stream("POST", path, content=json.dumps(body), headers=caller.headers) as answer:
            self._note(answer.status_code, path, way)
            async for line in answer.aiter_lines():
                for event in _events(line):
                    assert not event.get("error"), line
                    assert event.get("type") != "error", line
                most -= 1
                if most <= 0:
                    self.left += 1
                    break

    async def _leave(self, caller: Caller) -> None:
        await self._stream(caller, self._random.randint(1, 12), "leave")

    async def _converse(self, caller: Caller) -> None:
        """A stored response that is continued, read and deleted."""
        first = await self._post(caller, RESPONSES, self._body(RESPONSES, input="the fox"))
        if first is None:
            return
        place = f"{RESPONSES}/{first['id']}"
        body = self._body(RESPONSES, previous_response_id=first["id"], input="and the dog", max_output_tokens=8)
        await self._post(caller, RESPONSES, body, "continue")
        for path in (place, f"{place}/input_items", "/v1/models", "/v1/cache", f"/v1/requests/{first['id']}/explain"):
            self._seen(await caller.client.get(path, headers=caller.headers), path.replace(first["id"], "…"), "get")
        self._seen(await caller.client.delete(place, headers=caller.headers), RESPONSES, "delete")

    async def _cancel(self, caller: Caller) -> None:
        body = self._body(RESPONSES, stream=True, max_output_tokens=200)
        await self._interrupt(caller, RESPONSES, body, lambda event: f"{RESPONSES}/{event['response']['id']}/cancel")

    async def _abort(self, caller: Caller) -> None:
        """By the id that the client gave the request."""
        name = f"request-{next(self._names)}"
        own = Caller(caller.client, {**caller.headers, "x-request-id": name})
        body = self._body(CHAT, stream=True, max_tokens=200, n=2)
        await self._interrupt(own, CHAT, body, lambda _event: f"/v1/requests/{name}/abort")

    async def _interrupt(self, caller: Caller, path: str, body: Json, how: Callable[[Json], str]) -> None:
        """Ends a stream by another call, and reads it to its end."""
        is_ended = False
        async with caller.client.stream("POST", path, content=json.dumps(body), headers=caller.headers) as answer:
            self._note(answer.status_code, path, "interrupt")
            async for line in answer.aiter_lines():
                for event in _events(line) if not is_ended and answer.status_code == 200 else ():
                    is_ended = True
                    ended = await caller.client.post(how(event), headers=caller.headers)
                    self._note(ended.status_code, how(event).rpartition("/")[2], "")

    async def _tokens(self, caller: Caller) -> None:
        chat = self._body(CHAT)
        said = {"model": self._model, "messages": chat["messages"]}
        found = await self._post(caller, "/tokenize", said)
        await self._post(caller, "/detokenize", {"tokens": found["tokens"] if found else [5]})
        await self._post(caller, f"{CHAT}/render", chat)
        await self._post(caller, f"{MESSAGES}/count_tokens", said)

    async def _nonsense(self, caller: Caller) -> None:
        path = self._random.choice([*VARIATIONS, "/tokenize", "/detokenize", f"{MESSAGES}/count_tokens", "/v1/unknown"])
        content = self._random.choice(NONSENSE)
        self._note(
            (await caller.client.post(path, content=content, headers=caller.headers)).status_code, "", "nonsense"
        )

    async def _too_long(self, caller: Caller) -> None:
        await self._post(caller, CHAT, self._body(CHAT, max_tokens=100_000), "too long")

    async def _flood(self, caller: Caller) -> None:
        await self._post(caller, CHAT, self._body(CHAT, max_tokens=1, n=16), "flood")


def _events(line: str) -> Iterator[Json]:
    if line.startswith("data: {"):
        yield json.loads(line.removeprefix("data: "))
