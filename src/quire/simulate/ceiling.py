"""What a cache without end would reuse: of each prompt, the whole units that an earlier request began with.

    earlier    ├─ unit ─┼─ unit ─┼─ unit ─┼─ end         prompt and answer; its end, where hits may end there too
    prompt     ├─ unit ─┼─ unit ─┼─ another …
    reusable   └────────┴────────┘

Answers count as seen from their request's arrival on, so no cache that runs beside the trace finds more, as long as
requests start in the order in which they came.
"""

from __future__ import annotations

import numpy as np

from quire.core.request import Tokens
from quire.simulate.tokens import scrambled


class Ceiling:
    def __init__(self, unit_tokens: int, has_ends: bool = False) -> None:
        self.unit_tokens, self.has_ends = unit_tokens, has_ends
        self._weights = scrambled(np.arange(1, unit_tokens + 1, dtype=np.uint64)) | np.uint64(1)
        self._seen: set[int] = set()
        self._ends: set[tuple[int, bytes]] = set()
        """Of earlier requests: the name of their whole units, and the tokens behind those."""

    def of(self, prompt: Tokens, answer: Tokens) -> int:
        """Tokens of the prompt that could be reused; from now on, this request's own can be too."""
        known = np.concatenate([prompt, answer[:-1]])
        chain = [0, *self._names(known)]
        most = (len(prompt) - 1) // self.unit_tokens
        units = next((place for place in range(most) if chain[place + 1] not in self._seen), most)
        reusable = units * self.unit_tokens
        if self.has_ends:
            reusable += self._end_behind(chain[units], prompt[reusable:-1])
            self._ends.add((chain[-1], known[(len(chain) - 1) * self.unit_tokens :].tobytes()))
        self._seen.update(chain)
        return reusable

    def _end_behind(self, name: int, rest: Tokens) -> int:
        most = min(len(rest), self.unit_tokens - 1)
        return next((n for n in range(most, 0, -1) if (name, rest[:n].tobytes()) in self._ends), 0)

    def _names(self, tokens: Tokens) -> list[int]:
        """A 64-bit name for the prefix that ends with each whole unit: a sum over units mixed with their place."""
        units = len(tokens) // self.unit_tokens
        whole = tokens[: units * self.unit_tokens].reshape(units, self.unit_tokens).astype(np.uint64)
        places = scrambled(np.arange(units, dtype=np.uint64))
        names = np.cumsum(scrambled(whole @ self._weights + places), dtype=np.uint64)
        return [int(one) for one in names.tolist()]
