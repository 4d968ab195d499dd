"""From logits to tokens, for all rows of a step at once.

    logits ─▶ biases, penalties, grammar masks ─▶ temperature ─▶ one threshold per row ─▶ one draw per row

- top_k, top_p and min_p each keep the tokens from some logit up, so together they are one number per row. Tokens that
  tie with the last one kept are kept too, so results do not depend on how a sort orders equal logits.
- A draw needs one uniform number, a hash of the request's seed and the token's position; the token is where the running
  sum of probabilities passes it. So a request samples the same tokens alone, in any batch and after a preemption.
- A CPU ranks as many tokens as a row's threshold needs. On a GPU, kernels draw for all rows together
  (`kernels/drawing.py`): there Python does not know how many tokens a threshold keeps.

Legend: n rows of this step, v vocabulary.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from quire.core.errors import InputError
from quire.core.sampling import SEED_BITS, Sampling
from quire.plan.ledger import LOGITS_AT_ONCE
from quire.worker.pages.uploads import DirectUpload
from quire.worker.sampling.penalties import Penalties

CANDIDATES = 256
"""Tokens ranked for top_p at first; where they do not suffice, 16 times as many, up to the whole vocabulary."""
GREEDY = Sampling()
Ints = npt.NDArray[np.int64]
Columns = npt.NDArray[np.float64]
"""(temperature, top_k, top_p, log of min_p; row)."""


class Masks(Protocol):
    """The tokens that each row's grammar allows. Sampled tokens are reported to it one by one."""

    def mask(self, row: int) -> npt.NDArray[np.int32]:
        """A bit per token, 32 to a word, the lowest first; tokens beyond the last word are not allowed."""
        ...

    def accept(self, row: int, token: int) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Edits:
    """Numbers that are added to some of a row's logits."""

    biases: tuple[tuple[int, float], ...]
    stop_tokens: tuple[int, ...]
    stops_from: int
    """The first position where a stop token is allowed."""

    def at(self, position: int) -> list[tuple[int, float]]:
        early = self.stop_tokens if position < self.stops_from else ()
        return [*self.biases, *((token, -np.inf) for token in early)]


class Sampler:
    """Samples tokens. It never waits for a device: rows' settings are columns in main memory, uploaded with each
    step."""

    def __init__(
        self, rows: int, vocab_size: int, device: torch.device | str = "cpu", masks: Masks | None = None
    ) -> None:
        self.vocab_size, self.device, self.masks = vocab_size, torch.device(device), masks
        self._upload = DirectUpload(self.device)
        self._columns: Columns = np.zeros((4, rows))
        self._seeds = np.zeros(rows, dtype=np.uint64)
        self._edits: dict[int, _Edits] = {}
        self._has_grammar = np.zeros(rows, dtype=np.bool_)
        self._plain = np.ones(rows, dtype=np.bool_)
        """Rows that take the likeliest token of the logits as they are."""
        self._shaped = np.zeros(rows, dtype=np.bool_)
        """Rows whose logits are changed before they are sampled from."""
        self._block_rows = max(1, LOGITS_AT_ONCE[self.device.type != "cpu"] // vocab_size)
        self.penalties = Penalties(rows, vocab_size, self._upload, self._block_rows)

    def enter(
        self,
        row: int,
        sampling: Sampling,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike = (),
        stop_tokens: tuple[int, ...] = (),
    ) -> None:
        """Gives the row to a request. `output_tokens`: what it had generated before it was preempted."""
        prompt, outputs = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64)
        self._check(sampling)
        self._columns[:, row] = columns_of(sampling)
        self._seeds[row] = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
        self._has_grammar[row] = sampling.grammar is not None
        self._edits.pop(row, None)
        if sampling.logit_bias or sampling.min_tokens:
            self._edits[row] = _Edits(sampling.logit_bias, stop_tokens, len(prompt) + sampling.min_tokens)
        self.penalties.enter(row, sampling, prompt, outputs)
        self._shaped[row] = sampling.has_penalties or self._has_grammar[row] or row in self._edits
        self._plain[row] = sampling.temperature == 0 and not self._shaped[row]

    def is_plain(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether all of them take the likeliest token."""
        return bool(self._plain[rows].all())

    def sample(self, logits: torch.Tensor, rows: Sequence[int] | Ints, positions: npt.ArrayLike) -> torch.Tensor:
        """logits [n, v], on a GPU of any float type; `positions`: of the tokens to sample; the first output has the
        prompt's length."""
        numbers = np.asarray(rows, dtype=np.int64)
        if self.is_plain(numbers):
            return _likeliest(logits)
        places = np.asarray(positions, dtype=np.int64)
        shaped = self._shape(logits.float(), numbers, places) if self._shaped[numbers].any() else logits
        draw = self._draw if self.device.type == "cpu" else self._draw_on_device
        tokens = draw(shaped, numbers, places)
        self.penalties.count(numbers, tokens)
        self._advance_grammars(numbers, tokens)
        return tokens

    def _draw(self, shaped: torch.Tensor, rows: Ints, positions: Ints) -> torch.Tensor:
        hot = np.flatnonzero(self._columns[0, rows] > 0)
        shaped, chances = shaped.float(), uniform(self._seeds[rows], positions)
        if 0 < len(hot) == len(rows) <= self._block_rows:
            return _draw_tokens(shaped, self._columns[:, rows], chances, self._upload)
        tokens = _likeliest(shaped)
        for first in range(0, len(hot), self._block_rows):
            some = hot[first : first + self._block_rows]
            where = self._upload(some)
            drawn = _draw_tokens(
                shaped.index_select(0, where), self._columns[:, rows[some]], chances[some], self._upload
            )
            tokens.index_copy_(0, where, drawn)
        return tokens

    def _draw_on_device(self, shaped: torch.Tensor, rows: Ints, positions: Ints) -> torch.Tensor:
        """As many rows at once as the ledger has memory for."""
        from quire.worker.kernels import drawing

        wishes = drawing.wishes_of(self._columns[:, rows], uniform(self._seeds[rows], positions), self.vocab_size)
        given = self._upload(wishes.numbers)
        cuts = [slice(first, first + self._block_rows) for first in range(0, len(rows), self._block_rows)]
        drawn = [drawing.draw(shaped[cut], given[cut], wishes) for cut in cuts]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def warm(self, dtype: torch.dtype) -> None:
        """On a GPU: compiles what draws from logits of this type, before a request waits for it."""
        if self.device.type != "cpu":
            from quire.worker.kernels import drawing

            columns = np.array([columns_of(Sampling(temperature=1.0, top_k=1, top_p=0.5))]).T
            wishes = drawing.wishes_of(columns, np.zeros(1), self.vocab_size)
            logits = torch.zeros(1, self.vocab_size, dtype=dtype, device=self.device)
            drawing.draw(logits, self._upload(wishes.numbers), wishes)

    def _check(self, sampling: Sampling) -> None:
        sampling.require_known_biases(self.vocab_size)
        if sampling.grammar and self.masks is None:
            raise InputError("the request has a grammar, and this engine was started without grammars: leave it out")

    def _shape(self, logits: torch.Tensor, rows: Ints, positions: Ints) -> torch.Tensor:
        """Applies biases, bans of early stop tokens, penalties and grammars; the caller's logits stay as they are."""
        shaped = self.penalties.apply(logits, rows)
        edits = self._edits_at(rows, positions)
        if edits:
            entries, tokens = self._upload(np.array(list(edits)).T)
            values = self._upload(np.array(list(edits.values())))
            shaped = shaped.clone() if shaped is logits else shaped
            shaped[entries, tokens] += values.to(shaped.dtype)
        constrained = np.flatnonzero(self._has_grammar[rows])
        if len(constrained) and self.masks:
            where, words = self._upload(constrained), [self.masks.mask(row) for row in rows[constrained].tolist()]
            shaped = shaped.clone() if shaped is logits else shaped
            allowed = shaped.index_select(0, where).masked_fill_(~self._allowed(words), -torch.inf)
            shaped.index_copy_(0, where, allowed)
        return shaped

    def _edits_at(self, rows: Ints, positions: Ints) -> dict[tuple[int, int], float]:
        """By entry and token, the number that is added to its logit."""
        found: dict[tuple[int, int], float] = {}
        for entry, row in enumerate(rows.tolist()) if self._edits else ():
            for token, value in self._edits[row].at(int(positions[entry])) if row in self._edits else ():
                found[entry, token] = found.get((entry, token), 0.0) + value
        return found

    def _allowed(self, words: list[npt.NDArray[np.int32]]) -> torch.Tensor:
        allowed = np.zeros((len(words), self.vocab_size), dtype=np.bool_)
        for target, mask in zip(allowed, words, strict=True):
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self.vocab_size]
            target[: len(bits)] = bits
        return self._upload(allowed)

    def _advance_grammars(self, rows: Ints, tokens: torch.Tensor) -> None:
        """Only rows with a grammar wait for the sampled tokens."""
        constrained = np.flatnonzero(self._has_grammar[rows])
        if len(constrained) and self.masks:
            drawn = tokens.tolist()
            for entry in constrained.tolist():
                self.masks.accept(int(rows[entry]), drawn[entry])


def columns_of(sampling: Sampling) -> tuple[float, float, float, float]:
    least = float(np.log(sampling.min_p)) if sampling.min_p else -np.inf
    return sampling.temperature, sampling.top_k, sampling.top_p, least


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, never one of NaN. On a CPU, NaN is replaced only where argmax took it, and
    numpy's argmax is used, which is several times faster than torch's. A device would have to wait for that test."""
    if logits.is_cpu:
        tokens = torch.from_numpy(logits.numpy().argmax(-1))
        if not logits.gather(-1, tokens[:, None]).isnan().any():
            return tokens
    return logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(-1)


def _draw_tokens(
    logits: torch.Tensor, columns: Columns, chances: npt.NDArray[np.float64], upload: DirectUpload
) -> torch.Tensor:
    """One token per row, by one uniform number each; 0 where no token has a probability. On a CPU."""
    given, most = upload(np.vstack([columns, chances])), torch.finfo(logits.dtype).max
    scaled = logits.nan_to_num(-torch.inf, most, -torch.inf)
    scaled.sub_(scaled.amax(-1, keepdim=True).clamp_(min=-most)).div_(given[0, :, None].to(logits.dtype))
    likely = scaled.exp()
    least = _threshold(scaled, likely, columns)
    sums = likely.masked_fill_(scaled < least, 0).cumsum(-1, dtype=torch.float64)
    tokens = torch.searchsorted(sums, given[-1, :, None] * sums[:, -1:], right=True).squeeze(-1)
    return tokens.masked_fill_(tokens == logits.shape[-1], 0)


def _threshold(scaled: torch.Tensor, likely: torch.Tensor, columns: Columns) -> torch.Tensor:
    """[n, 1]: the least scaled logit that each row keeps. The greatest is 0, with weight 1."""
    least = torch.from_numpy(columns[3, :, None]).to(scaled.dtype)
    short = np.flatnonzero((columns[1] > 0) | (columns[2] < 1))
    if not len(short):
        return least
    width = int(max(CANDIDATES, columns[1].max()))
    while len(short):
        ranked = scaled[short].topk(min(width, scaled.shape[-1]), -1).values
        kept, is_known = _by_rank(scaled[short], likely[short], ranked, columns[:, short])
        least[short] = torch.maximum(least[short], kept)
        short = short[~is_known.numpy()]
        width *= 16
    return least


def _by_rank(
    scaled: torch.Tensor, likely: torch.Tensor, ranked: torch.Tensor, columns: Columns
) -> tuple[torch.Tensor, torch.Tensor]:
    """top_k, then top_p of the rest. Returns each row's threshold, and whether the ranked logits sufficed for it: where
    they did not, the threshold keeps too many tokens."""
    top_k, share = torch.from_numpy(columns[1:3, :, None])
    last = top_k.clamp(1, ranked.shape[-1]).long() - 1
    least = ranked.gather(-1, last).masked_fill_(top_k == 0, -torch.inf)
    total = torch.where(scaled >= least, likely, 0).sum(-1, keepdim=True, dtype=torch.float64)
    first = ranked.exp()
    before = first.cumsum(-1, dtype=torch.float64) - first
    ending = ((ranked >= least) & (before < share * total)).sum(-1, keepdim=True).clamp_(min=1) - 1
    is_known = (share == 1) | (ending < ranked.shape[-1] - 1) | (ranked.shape[-1] == scaled.shape[-1])
    below = torch.where((share < 1) & is_known, ranked.gather(-1, ending), -torch.inf)
    return torch.maximum(least, below), is_known.squeeze(-1)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """In [0, 1), one per pair: two rounds of a 64-bit finaliser (splitmix64's constants), the upper 53 bits."""
    mixed = _mix(_mix(seeds) ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
