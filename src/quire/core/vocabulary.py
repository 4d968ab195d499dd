"""Whether the model has the tokens that someone names. Asked once, before the engine hears of a request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.core.sampling import Sampling


def known_prompt(tokens: Sequence[int] | npt.NDArray[np.integer], vocabulary_tokens: int) -> Tokens:
    """A prompt as requests have it: each number is one of the model's tokens."""
    try:
        numbers = np.asarray(tokens)
    except ValueError as error:
        raise InputError(f"the prompt is no list of token numbers: {error}") from error
    if numbers.ndim != 1:
        raise InputError(f"the prompt has {numbers.ndim} dimensions: give each prompt as one list of token numbers")
    is_whole = numbers.dtype.kind in "iu" or all(type(number) is int for number in numbers.tolist())
    if not is_whole:
        raise InputError(f"the prompt has numbers of sort {numbers.dtype}: token numbers are whole")
    beyond = numbers[(numbers < 0) | (numbers >= vocabulary_tokens)]
    if len(beyond):
        raise InputError(f"the prompt has token {beyond[0]}: the model's tokens are 0 to {vocabulary_tokens - 1:,}")
    return numbers.astype(np.int32)


def require_known_biases(sampling: Sampling, vocabulary_tokens: int) -> None:
    beyond = [token for token, _ in sampling.logit_bias if token >= vocabulary_tokens]
    if beyond:
        raise InputError(f"logit_bias names token {beyond[0]}: the model's tokens are 0 to {vocabulary_tokens - 1:,}")
