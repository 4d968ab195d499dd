"""What an unlimited cache would reuse: of each prompt, the prefix of an earlier request, if a hit may end there.

    earlier    ├─ unit ─┼─ unit ─┼─ unit ─┼─ end         prompt and answer
    prompt     ├─ unit ─┼─ unit ─┼─ another …
    shared     └────────┴────────┘

| kinds of the model            | where a hit may end                                                       |
| all grow                      | at every unit                                                             |
| windows too                   | at every unit, and where an earlier turn ended                            |
| states too                    | at every `checkpoint_tokens`, and where an earlier prompt or turn ended   |

Answers count as seen from their request's arrival on, so no cache that runs alongside the trace finds more than is
shared, as long as requests start in the order of arrival. A cache that knows where prompts will diverge may keep a
state there, and then finds more than the ceiling of models with states.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np

from quire.core.request import Tokens
from quire.kinds import Keeps
from quire.plan.plan import Plan
from quire.simulate.tokens import scrambled

CHECKPOINT_TOKENS = 512
"""Distance between two states that are kept."""
Ends: TypeAlias = defaultdict[int, set[bytes]]
"""Where earlier requests ended: by the name of their whole units, the remaining tokens."""


class Ceiling:
    def __init__(self, unit_tokens: int, has_ends: bool = False, checkpoint_tokens: int | None = None) -> None:
        """`has_ends`: hits may end where a turn ended. `checkpoint_tokens`: the model has states."""
        self.unit_tokens, self.has_ends = unit_tokens, has_ends or checkpoint_tokens is not None
        self._checkpoint_units = None if checkpoint_tokens is None else max(1, checkpoint_tokens // unit_tokens)
        self._weights = scrambled(np.arange(1, unit_tokens + 1, dtype=np.uint64)) | np.uint64(1)
        self._seen: set[int] = set()
        self._turn_ends: Ends = defaultdict(set)
        self._state_ends: Ends = defaultdict(set)
        """Ends of prompts and of turns."""
        self.reusable_tokens = self.shared_tokens = 0
        """Tokens of all prompts so far: reusable with these kinds; shared with an earlier request, in whole units or up
        to the end of a turn."""

    @staticmethod
    def of_plan(plan: Plan) -> Ceiling:
        kinds = [kind.kind for stage in plan.stages for kind in stage.kinds]
        has_states = any(kind.keeps is Keeps.STATE for kind in kinds)
        has_tails = any(not kind.grows for kind in kinds)
        return Ceiling(plan.reuse_unit_tokens, has_tails, CHECKPOINT_TOKENS if has_states else None)

    def of(self, prompt: Tokens, answer: Tokens) -> int:
        """Tokens of the prompt that could be reused. Adds the request, so that later ones can reuse its tokens."""
        known = np.concatenate([prompt, answer[:-1]])
        chain = [0, *self._names(known)]
        most = (len(prompt) - 1) // self.unit_tokens
        units = next((place for place in range(most) if chain[place + 1] not in self._seen), most)
        at_units = units * self.unit_tokens
        shared = at_units + (_furthest(self._turn_ends, chain[units], prompt[at_units:-1]) or 0)
        reusable = shared if self._checkpoint_units is None else self._at_states(chain, units, prompt)
        self._remember(chain, known, len(prompt))
        self.shared_tokens += shared
        self.reusable_tokens += reusable
        return reusable

    def _at_states(self, chain: list[int], units: int, prompt: Tokens) -> int:
        """The furthest end within `units` units and the one after them, or the last checkpoint."""
        assert self._checkpoint_units is not None
        checkpoint = units // self._checkpoint_units * self._checkpoint_units
        for unit in range(units, checkpoint - 1, -1):
            begin = unit * self.unit_tokens
            end = _furthest(self._state_ends, chain[unit], prompt[begin:-1])
            if end is not None:
                return begin + end
        return checkpoint * self.unit_tokens

    def _remember(self, chain: list[int], known: Tokens, prompt_tokens: int) -> None:
        turn = (self._turn_ends, len(known)), (self._state_ends, len(known)), (self._state_ends, prompt_tokens)
        for ends, count in turn if self.has_ends else ():
            units = count // self.unit_tokens
            ends[chain[units]].add(known[units * self.unit_tokens : count].tobytes())
        self._seen.update(chain)

    def _names(self, tokens: Tokens) -> list[int]:
        """A 64-bit name for the prefix that ends with each whole unit: a sum over units mixed with their place."""
        units = len(tokens) // self.unit_tokens
        whole = tokens[: units * self.unit_tokens].reshape(units, self.unit_tokens).astype(np.uint64)
        places = scrambled(np.arange(1, units + 1, dtype=np.uint64))
        names = np.cumsum(scrambled(whole @ self._weights + places), dtype=np.uint64)
        return [int(one) for one in names.tolist()]


def _furthest(ends: Ends, name: int, rest: Tokens) -> int | None:
    """Tokens from the unit of that name to the furthest end that `rest` begins with; None: there is none."""
    packed = rest.tobytes()
    found = [len(one) for one in ends.get(name, ()) if packed.startswith(one)]
    return max(found) // rest.itemsize if found else None
