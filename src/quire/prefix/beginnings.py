"""First units of prompts, and who computed them last: tells a miss in one scope from a miss in all."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.reasons import Why
from quire.core.request import Request
from quire.prefix.keys import end_key

BEGINNINGS_REMEMBERED = 65_536


class Beginnings:
    def __init__(self, unit: int, root_of: Callable[[str], bytes]) -> None:
        self._unit, self._root_of = unit, root_of
        self._roots: dict[bytes, bytes] = {}
        """By the first unit of a prompt: the root of the scope that computed it last."""

    def note(self, request: Request) -> None:
        """A row has computed the first unit of its prompt."""
        self._roots[self._key(request)] = self._root_of(request.scope)
        if len(self._roots) > BEGINNINGS_REMEMBERED:
            del self._roots[next(iter(self._roots))]

    def why(self, miss: Why | None, request: Request) -> Why | None:
        """Why nothing was found. For operators only: SCOPE reveals that another scope has the same first tokens."""
        if miss is not Why.NO_OVERLAP:
            return miss
        return Why.SCOPE if self._roots.get(self._key(request)) not in (None, self._root_of(request.scope)) else miss

    def _key(self, request: Request) -> bytes:
        """The same for all scopes."""
        return end_key(b"", request.prompt[: self._unit])
