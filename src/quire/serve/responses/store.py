"""Responses that are kept in memory, so that a later call can continue them. Each belongs to the key that made it.

All of them together have a limit in bytes, and each key one in number. Beyond a limit the oldest response goes: of the
key itself, or of the key that holds the most bytes, so that no key can take the place of the others.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.serve.errors import ApiError, dumps
from quire.serve.keys import Tenant

Json = dict[str, Any]
MOST_RESPONSES = 4096
"""Of one key."""
ENTRY_BYTES = 512
"""Counted for each response in addition to its text."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A response and the items that it answers, as JSON: its size is known, and it cannot be changed."""

    response: bytes
    input: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input) + ENTRY_BYTES

    def document(self) -> Json:
        found: Json = json.loads(self.response)
        return found

    def input_items(self) -> list[Json]:
        found: list[Json] = json.loads(self.input)
        return found

    def conversation(self) -> list[Json]:
        return [*self.input_items(), *self.document()["output"]]


def stored(response: Json, items: Sequence[Json]) -> Stored:
    return Stored(dumps(response).encode(), dumps(items).encode())


class ResponseStore:
    def __init__(self, limit_bytes: int, most_responses: int = MOST_RESPONSES) -> None:
        """`limit_bytes` 0: nothing is kept."""
        self._limit_bytes, self._most_responses = limit_bytes, most_responses
        self._owners: dict[tuple[str, str], _Shelf] = {}

    @property
    def is_on(self) -> bool:
        return self._limit_bytes > 0

    @property
    def bytes(self) -> int:
        return sum(shelf.bytes for shelf in self._owners.values())

    @property
    def responses(self) -> int:
        return sum(len(shelf.entries) for shelf in self._owners.values())

    def keep(self, tenant: Tenant, response: Json, items: Sequence[Json]) -> None:
        self.put(tenant, response["id"], stored(response, items))

    def put(self, tenant: Tenant, response: str, entry: Stored) -> None:
        """A response larger than all that may be kept is not kept."""
        if entry.size > self._limit_bytes:
            return
        shelf = self._owners.setdefault(_owner(tenant), _Shelf())
        shelf.add(response, entry)
        if len(shelf.entries) > self._most_responses:
            shelf.drop_oldest()
        while self.bytes > self._limit_bytes:
            self._drop_oldest_of_largest()

    def find(self, tenant: Tenant, response: str) -> Stored | None:
        """None: never stored, dropped, or another key's; these cannot be distinguished."""
        shelf = self._owners.get(_owner(tenant))
        return None if shelf is None else shelf.entries.get(response)

    async def fetch(self, tenant: Tenant, responses: Sequence[str]) -> ResponseStore:
        """A store that has these responses, if they are stored at all: this one, unless it is another process's."""
        del tenant, responses
        return self

    async def remove(self, tenant: Tenant, response: str) -> None:
        """Deletes a response in whichever process it is stored."""
        self.delete(tenant, response)

    def get(self, tenant: Tenant, response: str) -> Stored:
        found = self.find(tenant, response)
        if found is None:
            message = f"no response {response[:64]!r} of this key is stored: it was deleted, is too old or never was"
            raise ApiError(404, message, "response_not_found")
        return found

    def delete(self, tenant: Tenant, response: str) -> None:
        self.get(tenant, response)
        owner = _owner(tenant)
        self._owners[owner].drop(response)
        self._forget_empty(owner)

    def _drop_oldest_of_largest(self) -> None:
        owner = max(self._owners, key=lambda one: self._owners[one].bytes)
        self._owners[owner].drop_oldest()
        self._forget_empty(owner)

    def _forget_empty(self, owner: tuple[str, str]) -> None:
        if not self._owners[owner].entries:
            del self._owners[owner]


class _Shelf:
    """The responses of one key, oldest first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, Stored] = OrderedDict()
        self.bytes = 0

    def add(self, response: str, entry: Stored) -> None:
        self.entries[response] = entry
        self.bytes += entry.size

    def drop(self, response: str) -> None:
        self.bytes -= self.entries.pop(response).size

    def drop_oldest(self) -> None:
        self.drop(next(iter(self.entries)))


def _owner(tenant: Tenant) -> tuple[str, str]:
    """A new key of a removed key's name does not inherit what that one stored."""
    return tenant.name, tenant.key_sha256
