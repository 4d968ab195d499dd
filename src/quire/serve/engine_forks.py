"""Forks in the engine's process: answers the HTTP process which tokens a fork continues.

HTTP ── AskFork(ForkQuestion) ──▶ engine
HTTP ◀── Reply(ForkReply) ── engine             then the fork is a call like others, with these tokens as its prompt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quire.core.request import Tokens
from quire.forks.forks import ForkRefused, Forks

FORK_SECONDS = 5.0
"""In which the engine answers."""


@dataclass(frozen=True, slots=True)
class ForkQuestion:
    request: str
    at: int | None
    tenant: str
    scope: str


@dataclass(frozen=True, slots=True, eq=False)
class ForkReply:
    """The tokens that a fork continues, or why there are none."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    problem: str = ""
    code: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)


def answer_fork(forks: Forks, question: ForkQuestion) -> ForkReply:
    try:
        return ForkReply(forks.tokens(question.request, question.at, question.tenant, question.scope))
    except ForkRefused as refused:
        return ForkReply(problem=str(refused), code=refused.code, numbers=refused.numbers)
