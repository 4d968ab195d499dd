"""A drafter for models that never repeat themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.request import Tokens
from quire.text.ngrams import NGramDrafter


class Reminded(NGramDrafter):
    """Has read before what the requests will yield, with a misprint in every line of seven tokens."""

    def __init__(self, texts: Sequence[np.ndarray]) -> None:
        super().__init__()
        self._read = np.concatenate(texts).astype(np.int32)
        self._read[::7] = self._read[0]

    def enter(self, row: int, tokens: Tokens, scope: str) -> None:
        super().enter(row, np.concatenate([self._read, tokens]), scope)
