"""What a client requests. Frozen: the scheduler keeps its progress."""

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


@dataclass(frozen=True, slots=True)
class Retain:
    """A request's tokens are leased for `seconds` from its end: a request that continues them finds all of them."""

    seconds: float
    session: str = ""
    """The lease that moves to this request's end; by default the tenant's own that the prompt continues."""
    quota_bytes: int | None = None
    """The most that leases of the tenant may take."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt, how many tokens to generate, for which tenant, and how. The scheduler keeps its progress."""

    name: str
    prompt: Tokens
    max_tokens: int
    priority: int = 0
    """Greater goes first (under fair shares, among its tenant's requests); the elder goes before all."""
    stop_tokens: tuple[int, ...] = ()
    scope: str = ""
    """Which requests may reuse its prefixes: prefixes are found within a scope only."""
    tenant: str = ""
    """The tenant that its tokens are charged to, under fair shares."""
    weight: float = 1.0
    """The tenant's weight from now on."""
    sampling: Sampling = GREEDY
    """How its tokens are chosen; the scheduler reads only whether drafts are allowed."""
    deadline: float | None = None
    """A time on the engine's clock: the request ends then if unfinished. Only code in the engine's process sets it."""
    client_id: str = ""
    """The client's own name for it, which recordings keep. Nothing is decided by it."""
    retain: Retain | None = None
    chunk_tokens: int | None = None
    """The most of its tokens that a step computes; None: as many as a step has room for."""
    points: tuple[int, ...] = ()
    """Tokens after which a boundary is kept: where the conversation's next turn will begin to differ from this one."""
    is_branch: bool = False
    """Others continue from its prompt's end too, which is therefore kept; prefixes are evicted for what they copy."""

    def __post_init__(self) -> None:
        if len(self.prompt) < 1:
            raise InputError(f"request {self.name} has an empty prompt: give at least 1 token")
        if self.max_tokens < 1:
            raise InputError(f"request {self.name} asks for {self.max_tokens} tokens: ask for at least 1")
        if not self.weight > 0:
            raise InputError(f"request {self.name} has a weight of {self.weight}: give a number above 0")
        if len(self.stop_tokens) > MOST_STOP_TOKENS:
            raise InputError(f"request {self.name} has {len(self.stop_tokens)} stop tokens: give {MOST_STOP_TOKENS}")

    @property
    def limit(self) -> int:
        """Prompt and output together: each token takes a slot."""
        return len(self.prompt) + self.max_tokens
