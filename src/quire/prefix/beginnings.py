"""First units of prompts by scope, to distinguish a miss in one scope from a miss in all."""

from __future__ import annotations

from quire.core.request import Tokens
from quire.prefix.keys import end_key

REMEMBERED = 65_536


class Beginnings:
    """For the first unit of each prompt: the root of the scope that computed it last."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._roots: dict[bytes, bytes] = {}

    def note(self, prompt: Tokens, root: bytes) -> None:
        self._roots[self._key(prompt)] = root
        if len(self._roots) > REMEMBERED:
            del self._roots[next(iter(self._roots))]

    def is_of_another(self, prompt: Tokens, root: bytes) -> bool:
        return self._roots.get(self._key(prompt), root) != root

    def _key(self, prompt: Tokens) -> bytes:
        """The same for all scopes."""
        return end_key(b"", prompt[: self._unit])
