"""What a request must yield, decided before it runs: a model in miniature, whose next token follows from all before.

Every position has a digest of the scope and of all tokens up to it. It stands for what a real model would store there:
two requests store the same at a position exactly where they have the same scope and the same tokens so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.check.definitions import Ints
from quire.core.request import Ending, Request

_MULTIPLIER, _MASK = 6364136223846793005, (1 << 62) - 1
MOST_GROUPS = 16
"""Digests are multiples of it, so that digest + group names what one group stores."""


def _mix(digest: int, value: int) -> int:
    mixed = ((digest ^ (digest >> 29)) * _MULTIPLIER + value + 1442695040888963407) & _MASK
    return mixed - mixed % MOST_GROUPS


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    tokens: Ints
    """Prompt and outputs, as an undisturbed run yields them."""
    digests: Ints
    """For each position, of everything up to it."""
    own: int
    """A digest of the request's name: what an encoder computed for it alone."""

    def expected(self, request: Request) -> tuple[list[int], Ending]:
        """Outputs, and why they end, if nobody ends the request before."""
        outputs: list[int] = self.tokens[len(request.prompt) :].tolist()
        stops = [place for place, token in enumerate(outputs) if token in request.stop_tokens]
        return (outputs[: stops[0] + 1], Ending.STOP) if stops else (outputs, Ending.LENGTH)


def script_for(request: Request) -> Script:
    tokens, digests = request.prompt.tolist(), []
    digest = _mix(0, int.from_bytes(request.scope.encode()))
    for position in range(request.limit):
        if position == len(request.prompt) and request.is_branch:
            tokens.append(10 + (_mix(digest, int.from_bytes(request.name.encode())) >> 40 & 0x3FFF))
        elif position == len(tokens):
            tokens.append(10 + (digest >> 40 & 0x3FFF))
        digest = _mix(digest, tokens[position])
        digests.append(digest)
    own = _mix(1, int.from_bytes(request.name.encode()))
    return Script(np.array(tokens, dtype=np.int64), np.array(digests, dtype=np.int64), own)
