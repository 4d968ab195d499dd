"""What someone asks for. Frozen: how far it has come is the scheduler's business."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from quire.core.errors import InputError
from quire.core.sampling import Sampling

Tokens = npt.NDArray[np.int32]
MOST_STOP_TOKENS = 8
GREEDY = Sampling()


class Ending(str, Enum):
    """Why a request ended."""

    LENGTH = "length"
    STOP = "stop"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    name: str
    prompt: Tokens
    max_tokens: int
    priority: int = 0
    """Greater goes first; the elder goes before everyone."""
    stop_tokens: tuple[int, ...] = ()
    scope: str = ""
    """Who may share what it computes: prefixes are found within a scope only."""
    tenant: str = ""
    """On whose account it runs, where tenants get fair shares."""
    sampling: Sampling = GREEDY
    """How its tokens are chosen; the scheduler only asks it whether they may be guessed."""
    deadline: float | None = None
    """On the engine's clock: not finished by then, it ends."""

    def __post_init__(self) -> None:
        if len(self.prompt) < 1:
            raise InputError(f"request {self.name} has an empty prompt: give at least 1 token")
        if self.max_tokens < 1:
            raise InputError(f"request {self.name} asks for {self.max_tokens} tokens: ask for at least 1")
        if len(self.stop_tokens) > MOST_STOP_TOKENS:
            raise InputError(f"request {self.name} has {len(self.stop_tokens)} stop tokens: give {MOST_STOP_TOKENS}")

    @property
    def limit(self) -> int:
        """Prompt and output together: each token takes a slot."""
        return len(self.prompt) + self.max_tokens
