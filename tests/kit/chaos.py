"""Clients that connect, stream, leave, send nonsense and flood, all at once. For tests and `make soak-serve`."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx

STALL_SECONDS = 60.0
"""A call that gets neither an answer nor an end within this time has stalled."""
NONSENSE = (
    b"{", b"null", b'{"model": 3}', b'{"messages": "x"}', b"\x00\xff", b'{"model": "x", "messages": []}', b"[" * 5000,
    b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 1e9}',
)  # fmt: skip


class Crowd:
    def __init__(self, address: str, model: str, keys: Sequence[str | None], clients: int, seed: int = 0) -> None:
        self._address, self._model, self._keys, self._clients = address, model, keys, clients
        self._random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.left = self.cut = self.stalls = self.lost_progress = 0
        self.calls = 0

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
        limits = httpx.Limits(max_connections=self._clients, max_keepalive_connections=self._clients // 2)
        async with httpx.AsyncClient(base_url=self._address, timeout=STALL_SECONDS, limits=limits) as client:
            await asyncio.gather(
                *(self._behave(client, end, self._keys[i % len(self._keys)]) for i in range(self._clients))
            )

    async def _behave(self, client: httpx.AsyncClient, end: float, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        ways = (self._whole, self._stream, self._leave, self._nonsense, self._too_long, self._flood)
        while time.monotonic() < end:
            self.calls += 1
            try:
                await self._random.choice(ways)(client, headers)
            except (httpx.ReadTimeout, httpx.PoolTimeout):
                self.stalls += 1
            except httpx.TransportError:
                self.cut += 1

    def _body(self, **change: Any) -> dict[str, Any]:
        words = " ".join(self._random.choices(["the", "quick", "fox", "dog", "sees"], k=self._random.randint(1, 60)))
        tokens = self._random.randint(1, 60)
        said = [{"role": "user", "content": words}]
        return {"model": self._model, "messages": said, "max_tokens": tokens, "ignore_eos": True, **change}

    async def _post(self, client: httpx.AsyncClient, headers: dict[str, str], **change: Any) -> None:
        answer = await client.post("/v1/chat/completions", json=self._body(**change), headers=headers)
        self.statuses[answer.status_code] += 1

    async def _whole(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        await self._post(client, headers, temperature=0.7, n=self._random.randint(1, 3))

    async def _stream(self, client: httpx.AsyncClient, headers: dict[str, str], most: int = 1 << 30) -> None:
        body = self._body(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            self.statuses[answer.status_code] += 1
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    assert "error" not in json.loads(line.removeprefix("data: ")), line
                most -= 1
                if most <= 0:
                    self.left += 1
                    break

    async def _leave(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        await self._stream(client, headers, self._random.randint(1, 12))

    async def _nonsense(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        head = {**headers, "content-type": "application/json"}
        answer = await client.post("/v1/chat/completions", content=self._random.choice(NONSENSE), headers=head)
        self.statuses[answer.status_code] += 1

    async def _too_long(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        await self._post(client, headers, max_tokens=100_000)

    async def _flood(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        await self._post(client, headers, max_tokens=1, n=16)
