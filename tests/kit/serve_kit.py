"""Calls that tests of the server make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
SIZE = ("--pool", "2MiB", "--max-length", "512", "--max-requests", "32", "--batch-tokens", "256", "--queue", "256")
"""Of the tiny model's server."""


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def body(**change: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "the quick fox"}], **change}


def chat(client: httpx.Client, **change: Any) -> httpx.Response:
    return client.post(CHAT, json=body(**change))


def wait_for_tokens(lines: Iterator[str], count: int) -> dict[str, Any]:
    """Reads so many chunks of a stream; the last one."""
    chunk: dict[str, Any] = {}
    for line in lines:
        if line.startswith("data: {"):
            chunk, count = json.loads(line.removeprefix("data: ")), count - 1
            assert "error" not in chunk, line
        if not count:
            break
    return chunk
