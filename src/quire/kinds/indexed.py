"""indexed: latents with an index that selects, for each query, the tokens it reads. Every token is kept for ever.

    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒       live(c) = [0, c)
      ▲  ▲▲     ▲           ▲  ▲▲ ▲▲▲       a query sees all of them and reads at most `top_tokens`

The selection is made when the query runs, from index keys that are kept with the latents. A later query may select any
token, so none can be given back. A layer without index keys of its own uses the selection of an earlier layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.core.errors import PlanError
from quire.kinds.base import AllTokens


@dataclass(frozen=True, slots=True)
class Indexed(AllTokens):
    """Keeps every token, with the index keys that select what a query reads."""

    top_tokens: int
    kind: ClassVar[str] = "indexed"
    holds_latents: ClassVar[bool] = True
    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.top_tokens < 1:
            raise PlanError(f"top_tokens is {self.top_tokens}: a query must read at least 1 token")

    @property
    def name(self) -> str:
        return f"indexed-{self.top_tokens}"
