"""What is left of a request that is over."""

from __future__ import annotations

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
