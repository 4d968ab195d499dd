"""Log-probabilities for requests that want them: of output tokens, and of prompt tokens as they are computed.

    packed    [ p0 p1 p2 p3 | … ]     a row computes its prompt: the logits at p0 score p1, and so on;
    targets     ↑  ↑  ↑               those at the prompt's last token score the first output

Where no request wants them, nothing is computed, and no logits beyond those that tokens are sampled from. Logits of
prompts come in pieces of no more rows than a step may sample, one after another, so they fit in the ledger's line for
the logits of a step.
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
Block = list[np.ndarray]
"""Values, ranks, and ids and values of the likeliest tokens, of some targets."""


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Tokens whose log-probabilities are computed."""

    entries: Ints
    """Which of the step's rows they belong to."""
    positions: Ints
    """Their positions in their requests."""
    tokens: Ints
    logits: Ints
    """Which rows of the logits score them: of those that tokens are sampled from, or of those of prompts."""
    most: int
    """The greatest number of alternatives that any of them wants."""

    def pieces(self, rows: int) -> list[Targets]:
        """At most `rows` targets each, with logits of their own."""
        cuts = [slice(start, min(start + rows, self.size)) for start in range(0, self.size, rows)]
        return [
            Targets(
                self.entries[cut], self.positions[cut], self.tokens[cut], np.arange(cut.stop - cut.start), self.most
            )
            for cut in cuts
        ]

    @property
    def size(self) -> int:
        return len(self.entries)


_NONE = np.empty(0, dtype=np.int64)
NO_TARGETS = Targets(_NONE, _NONE, _NONE, _NONE, 0)


class Scorer:
    """Knows which rows want log-probabilities."""

    def __init__(self) -> None:
        self._outputs: dict[int, int] = {}
        """By row: alternatives with each output."""
        self._prompts: dict[int, tuple[int, Ints]] = {}
        """By row: alternatives with each token of the prompt, and the prompt."""

    def enter(self, row: int, request: Request) -> None:
        """Gives the row to a request."""
        self._outputs.pop(row, None)
        self._prompts.pop(row, None)
        sampling = request.sampling
        if sampling.logprobs is not None:
            self._outputs[row] = sampling.logprobs
        if sampling.prompt_logprobs is not None:
            self._prompts[row] = sampling.prompt_logprobs, request.prompt.astype(np.int64)

    def has_output_targets(self, step: Step) -> bool:
        """Whether any row that samples in this step wants log-probabilities of its outputs."""
        return bool(self._outputs) and not self._outputs.keys().isdisjoint(step.rows[step.samples].tolist())

    def prompt_targets(self, step: Step) -> Targets:
        """Tokens of prompts that this step's logits score."""
        if not self._prompts:
            return NO_TARGETS
        found, first = [], 0
        for entry, row in enumerate(step.rows.tolist()):
            if row in self._prompts:
                most, prompt = self._prompts[row]
                positions = np.arange(int(step.starts[entry]) + 1, min(int(step.ends[entry]) + 1, len(prompt)))
                entries, logits = np.full(len(positions), entry), first + np.arange(len(positions))
                found.append(Targets(entries, positions, prompt[positions], logits, most))
                first += len(positions)
        return _join(found)

    def output_targets(self, step: Step, sampled: torch.Tensor) -> Targets:
        """Of the tokens sampled in this step. Waits for their values only where a row wants log-probabilities."""
        if not self.has_output_targets(step):
            return NO_TARGETS
        tokens = sampled.cpu().numpy()
        entries, _, positions = step.sample_places()
        wanted = [self._outputs.get(row) for row in step.rows[entries].tolist()]
        logits = np.array([place for place, most in enumerate(wanted) if most is not None], dtype=np.int64)
        most = max((most for most in wanted if most is not None), default=0)
        return Targets(entries[logits], positions[logits], tokens[logits], logits, most)


def places_before(step: Step, targets: Targets) -> Ints:
    """Where in the packed batch the token before each target is computed."""
    begins = np.cumsum(step.counts) - step.counts
    return np.asarray(begins[targets.entries] + targets.positions - 1 - step.starts[targets.entries], dtype=np.int64)


def score(targets: Targets, logits: torch.Tensor, most: int) -> list[Block]:
    """Block by block, with the `most` likeliest tokens of each target."""
    if not targets.size:
        return []
    rows, tokens = (torch.from_numpy(column).to(logits.device) for column in (targets.logits, targets.tokens))
    size = max(1, BLOCK_ELEMENTS // logits.shape[-1])
    starts = range(0, len(rows), size)
    return [_block(logits[rows[start : start + size]], tokens[start : start + size], most) for start in starts]


def join_scores(outputs: Targets, prompt: Targets, blocks: list[Block]) -> StepLogprobs | None:
    """None: there are no targets."""
    targets = _join([outputs, prompt])
    if not targets.size:
        return None
    values, ranks, top_ids, top_values = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return StepLogprobs(targets.entries, targets.positions, targets.tokens, values, ranks, top_ids, top_values)


def _block(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> Block:
    values = torch.log_softmax(logits.float(), -1)
    chosen = values.gather(-1, tokens[:, None])
    ranks = 1 + (values > chosen).sum(-1)
    top = values.topk(min(most, values.shape[-1]), -1)
    return [tensor.cpu().numpy() for tensor in (chosen.squeeze(-1), ranks, top.indices, top.values)]


def _join(parts: list[Targets]) -> Targets:
    parts = [part for part in parts if part.size]
    if not parts:
        return NO_TARGETS
    return Targets(
        np.concatenate([part.entries for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.logits for part in parts]),
        max(part.most for part in parts),
    )
