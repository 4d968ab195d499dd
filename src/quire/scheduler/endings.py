"""How a request's life is told: to whoever asked for it, and to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.request import Ending, Request


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A request that is over: what it yielded, and why it ended."""

    request: Request
    outputs: npt.NDArray[np.int32]
    ending: Ending


Listener = Callable[[str, Request, str], None]
"""Hears (event, request, reason) of what happens to single requests: admitted, preempted, ended."""


def unheard(event: str, request: Request, reason: str) -> None:
    del event, request, reason
