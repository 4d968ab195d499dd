"""latent: multi-head latent attention. One small vector per token, or one per `tokens_per_state` tokens, for ever.

    T = 4:  |▓▓▓▓|▓▓▓▓|▓▓▓▓|··▒       a state is written when its last token is computed;
             state state state         the tokens not folded yet live in a window kind beside this one

Ranks of a tensor-parallel group each keep the whole vector, because every query head reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.core.errors import PlanError
from quire.core.units import round_up
from quire.kinds.base import ATTENTION_PAGES, AllTokens, Counts


@dataclass(frozen=True, slots=True)
class Latent(AllTokens):
    """Keeps one vector for each token, or for each `tokens_per_state` tokens."""

    tokens_per_state: int = 1
    kind: ClassVar[str] = "latent"
    holds_latents: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tokens_per_state < 1:
            raise PlanError(f"tokens_per_state is {self.tokens_per_state}: a state must hold at least 1 token")

    @property
    def name(self) -> str:
        return "latent" if self.tokens_per_state == 1 else f"latent-{self.tokens_per_state}"

    def units(self, length: Counts) -> Counts:
        return length // self.tokens_per_state

    @property
    def tokens_per_unit(self) -> int:
        return self.tokens_per_state

    def page_choices(self, narrow: bool) -> tuple[int, ...]:
        del narrow
        whole_states = {round_up(page, self.tokens_per_state) for page in ATTENTION_PAGES}
        return tuple(sorted(page for page in whole_states if page <= ATTENTION_PAGES[-1])) or (self.tokens_per_state,)
