"""What follows the index: it learns which whole units are there. Ends of turns between units are not reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Follower(Protocol):
    def added(self, row: int, keys: Sequence[bytes], begin: int, end: int) -> None:
        """The units [begin, end) of a chain are there now; the row still has their tokens. `keys`: of the chain."""
        ...

    def removed(self, keys: Sequence[bytes]) -> None:
        """Units are no longer there, from one on to a chain's end."""
        ...
