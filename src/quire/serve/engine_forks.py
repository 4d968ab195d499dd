"""Forks in the engine's process: answers the HTTP process which tokens a fork continues.

HTTP ── AskFork(ForkQuestion) ──▶ engine
HTTP ◀── Reply(ForkReply) ── engine             then the fork is a call like others, with these tokens as its prompt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quire.core.request import Tokens
from quire.forks.forks import NOT_FOUND, OUT_OF_RANGE, ForkRefused, Forks

FORK_SECONDS = 5.0
"""In which the engine answers."""


@dataclass(frozen=True, slots=True)
class ForkQuestion:
    call: str
    choice: int
    """Of the call: each is a request."""
    at: int | None
    tenant: str
    scope: str

    @property
    def name(self) -> str:
        return f"{self.call}-{self.choice}"


@dataclass(frozen=True, slots=True, eq=False)
class ForkReply:
    """The tokens that a fork continues, or why there are none."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    problem: str = ""
    code: str = ""
    param: str = ""
    """The field of `fork_from` that it is about."""
    numbers: Mapping[str, int] = field(default_factory=dict)


def answer_fork(forks: Forks, question: ForkQuestion) -> ForkReply:
    owner = question.tenant, question.scope
    try:
        return ForkReply(forks.tokens(question.name, question.at, *owner))
    except ForkRefused as refused:
        is_unknown = refused.code == NOT_FOUND
        if is_unknown and (choices := forks.numbers(f"{question.call}-", *owner)):
            return _no_such_choice(question, choices)
        param = "id" if is_unknown else "at"
        return ForkReply(problem=str(refused), code=refused.code, param=param, numbers=refused.numbers)


def _no_such_choice(question: ForkQuestion, choices: list[int]) -> ForkReply:
    there = f"{choices[0]} to {choices[-1]}" if len(choices) > 1 else f"{choices[0]}"
    problem = f"request {question.name} has no choice {question.choice}: give index {there}"
    numbers = {"index": question.choice, "choices": len(choices)}
    return ForkReply(problem=problem, code=OUT_OF_RANGE, param="index", numbers=numbers)
