"""From logits to tokens, for all rows of a step at once.

    logits ─▶ biases, penalties, grammar masks ─▶ temperature ─▶ one threshold per row ─▶ one draw per row

- top_k, top_p and min_p each keep the tokens from some logit up, so together they are one number per row. Tokens that
  tie with the last one kept are kept too: nothing depends on the order in which a sort leaves equals.
- A draw needs one uniform number, a hash of the request's seed and the token's position; the token is where the running
  sum of probabilities passes it. So a request draws the same tokens alone, in any batch and after a preemption.

Legend: n rows of this step, v vocabulary.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from quire.core.errors import InputError
from quire.core.sampling import SEED_BITS, Sampling
from quire.core.vocabulary import require_known_biases
from quire.worker.penalties import Penalties

CANDIDATES = 256
"""Tokens ranked for top_p at first; where they do not suffice, 16 times as many, up to the whole vocabulary."""
BLOCK_ELEMENTS = {"cpu": 1 << 19}
"""Logits worked on at once, for the sake of the CPU's cache; elsewhere all of them."""
GREEDY = Sampling()


class Masks(Protocol):
    """What grammars allow, by row. Whoever compiles them answers; a row's tokens are told as they are drawn."""

    def mask(self, row: int) -> npt.NDArray[np.int32]:
        """A bit per token, 32 to a word, the lowest first; tokens behind the last word are not allowed."""
        ...

    def accepted(self, row: int, token: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Row:
    sampling: Sampling
    seed: int
    prompt_tokens: int
    stop_tokens: tuple[int, ...]


class Sampler:
    def __init__(
        self, rows: int, vocab_size: int, device: torch.device | str = "cpu", masks: Masks | None = None
    ) -> None:
        self.vocab_size, self.device, self.masks = vocab_size, torch.device(device), masks
        self._rows = [_Row(GREEDY, 0, 0, ()) for _ in range(rows)]
        self._plain = np.ones(rows, dtype=np.bool_)
        """Rows that take the most likely token and nothing else."""
        self._penalties = Penalties(rows, vocab_size, self.device)

    def enter(
        self,
        row: int,
        sampling: Sampling,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike = (),
        stop_tokens: tuple[int, ...] = (),
    ) -> None:
        """The row belongs to someone else now. `output_tokens`: what it had put out before it was preempted."""
        prompt, outputs = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64)
        self._check(sampling)
        seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
        self._rows[row] = _Row(sampling, seed, len(prompt), stop_tokens)
        self._plain[row] = (
            sampling.temperature == 0
            and not (sampling.has_penalties or sampling.logit_bias or sampling.min_tokens)
            and sampling.grammar is None
        )
        self._penalties.enter(row, sampling, prompt, outputs)

    def is_plain(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether all of them take the most likely token."""
        return bool(self._plain[rows].all())

    def sample(
        self, logits: torch.Tensor, rows: Sequence[int] | npt.NDArray[np.int64], positions: npt.ArrayLike
    ) -> torch.Tensor:
        """logits [n, v]; `positions` are those of the tokens to be drawn: the first output has the prompt's length."""
        if self.is_plain(np.asarray(rows)):
            return _likeliest(logits)
        numbers = [int(row) for row in rows]
        places = np.asarray(positions, dtype=np.int64)
        requests = [self._rows[row] for row in numbers]
        shaped = self._shape(logits, numbers, requests, places)
        tokens = _likeliest(shaped)
        for hot in self._blocks([entry for entry, request in enumerate(requests) if request.sampling.temperature > 0]):
            tokens[hot] = _draw(shaped[hot], [requests[entry] for entry in hot], places[hot])
        self._penalties.count(numbers, tokens)
        self._tell(numbers, requests, tokens)
        return tokens

    def _check(self, sampling: Sampling) -> None:
        require_known_biases(sampling, self.vocab_size)
        if sampling.grammar and self.masks is None:
            raise InputError("the request has a grammar, and this engine was started without grammars: leave it out")

    def _shape(
        self, logits: torch.Tensor, rows: list[int], requests: list[_Row], positions: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Biases, stop tokens that come too early, penalties, grammars; the caller's logits stay as they are."""
        shaped = self._penalties.applied(logits, rows)
        edits = _edits(requests, positions)
        if edits:
            entries, tokens, values = (list(column) for column in zip(*edits, strict=True))
            shaped = shaped.clone() if shaped is logits else shaped
            added = torch.tensor(values, dtype=shaped.dtype, device=self.device)
            shaped.index_put_((self._index(entries), self._index(tokens)), added, accumulate=True)
        constrained = [entry for entry, request in enumerate(requests) if request.sampling.grammar]
        if constrained and self.masks:
            words = [self.masks.mask(rows[entry]) for entry in constrained]
            shaped = shaped.clone() if shaped is logits else shaped
            shaped[constrained] = shaped[constrained].masked_fill(~self._allowed(words), -torch.inf)
        return shaped

    def _allowed(self, words: list[npt.NDArray[np.int32]]) -> torch.Tensor:
        allowed = np.zeros((len(words), self.vocab_size), dtype=np.bool_)
        for target, mask in zip(allowed, words, strict=True):
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self.vocab_size]
            target[: len(bits)] = bits
        return torch.from_numpy(allowed).to(self.device)

    def _tell(self, rows: list[int], requests: list[_Row], tokens: torch.Tensor) -> None:
        for entry, request in enumerate(requests):
            if request.sampling.grammar and self.masks:
                self.masks.accepted(rows[entry], int(tokens[entry]))

    def _blocks(self, entries: list[int]) -> list[list[int]]:
        size = max(1, BLOCK_ELEMENTS.get(self.device.type, sys.maxsize) // self.vocab_size)
        return [entries[start : start + size] for start in range(0, len(entries), size)]

    def _index(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)


def _edits(requests: list[_Row], positions: npt.NDArray[np.int64]) -> list[tuple[int, int, float]]:
    """(entry, token, what is added to its logit)."""
    edits = [(e, token, bias) for e, request in enumerate(requests) for token, bias in request.sampling.logit_bias]
    for entry, request in enumerate(requests):
        if positions[entry] - request.prompt_tokens < request.sampling.min_tokens:
            edits += [(entry, token, -np.inf) for token in request.stop_tokens]
    return edits


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """NaN never is. A CPU looks for one where argmax took it; a device does not wait for such a question."""
    if logits.is_cpu:
        tokens = logits.argmax(-1)
        if not logits.gather(-1, tokens[:, None]).isnan().any():
            return tokens
    return logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(-1)


def _draw(logits: torch.Tensor, requests: list[_Row], positions: npt.NDArray[np.int64]) -> torch.Tensor:
    """One token per row, by one uniform number each; 0 where no token has a chance. May change the logits."""
    samplings = [request.sampling for request in requests]
    most = torch.finfo(logits.dtype).max
    logits = logits.nan_to_num_(-torch.inf, most, -torch.inf)
    greatest = logits.amax(-1, keepdim=True).clamp_(min=-most)
    scaled = (logits - greatest).div_(_column([s.temperature for s in samplings], logits))
    chances = scaled.exp()
    least = _threshold(scaled, chances, samplings)
    sums = torch.where(scaled >= least, chances, 0).cumsum(-1, dtype=torch.float64)
    seeds = np.array([request.seed for request in requests], dtype=np.uint64)
    passed = torch.from_numpy(uniform(seeds, positions)).to(sums.device)[:, None] * sums[:, -1:]
    tokens = torch.searchsorted(sums, passed, right=True).squeeze(-1)
    return tokens.masked_fill_(tokens == logits.shape[-1], 0)


def _threshold(scaled: torch.Tensor, chances: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """[n, 1]: the least scaled logit that each row keeps. The greatest is 0, its chance 1."""
    least = _column([np.log(s.min_p) if s.min_p else -np.inf for s in samplings], scaled)
    short = [entry for entry, s in enumerate(samplings) if s.top_k or s.top_p < 1]
    width = max([CANDIDATES, *(s.top_k for s in samplings)])
    while short:
        some = [samplings[entry] for entry in short]
        ranked = scaled[short].topk(min(width, scaled.shape[-1]), -1).values
        kept, is_known = _by_rank(scaled[short], chances[short], ranked, some)
        least[short] = torch.maximum(least[short], kept)
        short = [entry for entry, known in zip(short, is_known.tolist(), strict=True) if not known]
        width *= 16
    return least


def _by_rank(
    scaled: torch.Tensor, chances: torch.Tensor, ranked: torch.Tensor, samplings: list[Sampling]
) -> tuple[torch.Tensor, torch.Tensor]:
    """top_k, then top_p of what it leaves. The threshold of each row; and whether the ranked logits reached that far:
    if they did not, the threshold is still one that keeps too much."""
    last = torch.tensor([min(s.top_k or 1, ranked.shape[-1]) - 1 for s in samplings], device=scaled.device)
    least = ranked.gather(-1, last[:, None])
    least[[not s.top_k for s in samplings]] = -torch.inf
    share = torch.tensor([s.top_p for s in samplings], dtype=torch.float64, device=scaled.device)[:, None]
    total = torch.where(scaled >= least, chances, 0).sum(-1, keepdim=True, dtype=torch.float64)
    likely = ranked.exp()
    before = likely.cumsum(-1, dtype=torch.float64) - likely
    ending = ((ranked >= least) & (before < share * total)).sum(-1, keepdim=True).clamp_(min=1) - 1
    is_known = (share == 1) | (ending < ranked.shape[-1] - 1) | (ranked.shape[-1] == scaled.shape[-1])
    below = torch.where((share < 1) & is_known, ranked.gather(-1, ending), -torch.inf)
    return torch.maximum(least, below), is_known.squeeze(-1)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """In [0, 1), one per pair: two rounds of a 64-bit finaliser (splitmix64's constants), the upper 53 bits."""
    mixed = _mix(_mix(seeds) ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
