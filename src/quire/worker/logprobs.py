"""Log-probabilities for rows that asked: of the tokens drawn in a step, and of the prompt's as they are computed.

    packed   [ p0 p1 p2 p3 | … ]     a row computes its prompt: the logits at p0 say how likely p1 was, and so on;
    wanted     ↑  ↑  ↑               those at the prompt's last token are the first output's

Nobody asked: nothing is computed, and no logits beyond those that tokens are drawn from. Logits of prompts come in
pieces of no more rows than a step may have, one after another, so they lie where the ledger has those of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.core.logprobs import StepLogprobs
from quire.core.request import Request
from quire.core.step import Step

BLOCK_ELEMENTS = 1 << 22
"""Logits normalised at once."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Tokens whose log-probabilities are asked for."""

    entries: Ints
    """Which of the step's rows they belong to."""
    positions: Ints
    """Where they stand in their request."""
    tokens: Ints
    logits: Ints
    """Which rows of the logits judge them: of those that tokens are drawn from, or of those of prompts."""
    most: int
    """Alternatives that the most demanding of them wants."""

    def pieces(self, rows: int) -> list[Wanted]:
        """So many of them at most, each with logits of its own."""
        cuts = [slice(start, min(start + rows, self.size)) for start in range(0, self.size, rows)]
        return [
            Wanted(self.entries[cut], self.positions[cut], self.tokens[cut], np.arange(cut.stop - cut.start), self.most)
            for cut in cuts
        ]

    @property
    def size(self) -> int:
        return len(self.entries)


_NONE = np.empty(0, dtype=np.int64)
NOTHING = Wanted(_NONE, _NONE, _NONE, _NONE, 0)


class Scorer:
    def __init__(self) -> None:
        self._outputs: dict[int, int] = {}
        """By row that asked: alternatives with each output."""
        self._prompts: dict[int, tuple[int, Ints]] = {}
        """By row that asked: alternatives with each token of the prompt, and the prompt."""

    def enter(self, row: int, request: Request) -> None:
        """The row belongs to someone else now."""
        self._outputs.pop(row, None)
        self._prompts.pop(row, None)
        sampling = request.sampling
        if sampling.logprobs is not None:
            self._outputs[row] = sampling.logprobs
        if sampling.prompt_logprobs is not None:
            self._prompts[row] = sampling.prompt_logprobs, request.prompt.astype(np.int64)

    def is_asked(self, step: Step) -> bool:
        """Whether any row of this step wants to know about its outputs."""
        return bool(self._outputs) and not self._outputs.keys().isdisjoint(step.rows[step.samples].tolist())

    def prompt_tokens(self, step: Step) -> Wanted:
        """Tokens of prompts that this step's logits judge."""
        if not self._prompts:
            return NOTHING
        found, first = [], 0
        for entry, row in enumerate(step.rows.tolist()):
            if row in self._prompts:
                most, prompt = self._prompts[row]
                positions = np.arange(int(step.starts[entry]) + 1, min(int(step.ends[entry]) + 1, len(prompt)))
                entries, logits = np.full(len(positions), entry), first + np.arange(len(positions))
                found.append(Wanted(entries, positions, prompt[positions], logits, most))
                first += len(positions)
        return _joined(found)

    def drawn_tokens(self, step: Step, tokens: Ints) -> Wanted:
        """Those that somebody asked about, among the tokens drawn in this step at each place where rows sample."""
        if not self._outputs:
            return NOTHING
        entries, _, positions = step.sampled()
        asked = [self._outputs.get(row) for row in step.rows[entries].tolist()]
        logits = np.array([place for place, most in enumerate(asked) if most is not None], dtype=np.int64)
        most = max((most for most in asked if most is not None), default=0)
        return Wanted(entries[logits], positions[logits], tokens[logits], logits, most)


def packed_places(step: Step, wanted: Wanted) -> Ints:
    """Where in the packed batch the token before each of these is computed."""
    begins = np.cumsum(step.counts) - step.counts
    return np.asarray(begins[wanted.entries] + wanted.positions - 1 - step.starts[wanted.entries], dtype=np.int64)


def judged(wanted: Wanted, logits: torch.Tensor, most: int) -> list[list[np.ndarray]]:
    """Block by block: values, ranks, and ids and values of the `most` likeliest."""
    if not wanted.size:
        return []
    rows, tokens = (torch.from_numpy(column).to(logits.device) for column in (wanted.logits, wanted.tokens))
    size = max(1, BLOCK_ELEMENTS // logits.shape[-1])
    starts = range(0, len(rows), size)
    return [_block(logits[rows[start : start + size]], tokens[start : start + size], most) for start in starts]


def together(drawn: Wanted, prompt: Wanted, blocks: list[list[np.ndarray]]) -> StepLogprobs | None:
    """None: nobody asked."""
    wanted = _joined([drawn, prompt])
    if not wanted.size:
        return None
    values, ranks, top_ids, top_values = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return StepLogprobs(wanted.entries, wanted.positions, wanted.tokens, values, ranks, top_ids, top_values)


def _block(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> list[np.ndarray]:
    values = torch.log_softmax(logits.float(), -1)
    chosen = values.gather(-1, tokens[:, None])
    ranks = 1 + (values > chosen).sum(-1)
    top = values.topk(min(most, values.shape[-1]), -1)
    return [tensor.cpu().numpy() for tensor in (chosen.squeeze(-1), ranks, top.indices, top.values)]


def _joined(parts: list[Wanted]) -> Wanted:
    parts = [part for part in parts if part.size]
    if not parts:
        return NOTHING
    return Wanted(
        np.concatenate([part.entries for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.logits for part in parts]),
        max(part.most for part in parts),
    )
