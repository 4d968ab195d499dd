"""full: every token is remembered for ever.

▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒       live(c) = [0, c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.kinds.base import AllTokens


@dataclass(frozen=True, slots=True)
class Full(AllTokens):
    """Keeps every token."""

    kind: ClassVar[str] = "full"

    @property
    def name(self) -> str:
        return "full"
