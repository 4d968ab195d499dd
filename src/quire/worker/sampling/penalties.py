"""Repetition, frequency and presence penalties: which tokens the penalised rows have in prompt and outputs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from quire.core.sampling import Sampling
from quire.worker.pages.uploads import DirectUpload

Ints = npt.NDArray[np.int64]


class Penalties:
    """Counts take 5 bytes per row and token of the vocabulary, allocated when the first request needs them."""

    def __init__(self, rows: int, vocab_size: int, upload: DirectUpload, block_rows: int) -> None:
        """`block_rows`: rows of logits processed at once."""
        self._shape, self._upload, self._block_rows = (rows, vocab_size), upload, block_rows
        self._is_active = np.zeros(rows, dtype=np.bool_)
        self._columns = np.zeros((3, rows), dtype=np.float32)
        """(repetition, frequency, presence; row)."""
        self._outputs = torch.empty(0)
        """[rows, v]: how often each token was generated."""
        self._prompts = torch.empty(0)
        """[rows, v]: whether the prompt has the token."""

    @property
    def size_bytes(self) -> int:
        return self._outputs.nbytes + self._prompts.nbytes

    def enter(self, row: int, sampling: Sampling, prompt: Ints, outputs: Ints) -> None:
        self._is_active[row] = sampling.has_penalties
        if not sampling.has_penalties:
            return
        if not self._outputs.numel():
            self._outputs = torch.zeros(self._shape, dtype=torch.int32, device=self._upload.device)
            self._prompts = torch.zeros(self._shape, dtype=torch.bool, device=self._upload.device)
        self._columns[:, row] = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        self._outputs[row].copy_(self._upload(np.bincount(outputs, minlength=self._shape[1]).astype(np.int32)))
        self._prompts[row].zero_().index_fill_(0, self._upload(prompt), True)

    def apply(self, logits: torch.Tensor, rows: Ints) -> torch.Tensor:
        """The same logits where no row is penalised, otherwise new ones."""
        entries = np.flatnonzero(self._is_active[rows])
        if not len(entries):
            return logits
        shaped = logits.clone()
        for first in range(0, len(entries), self._block_rows):
            some = entries[first : first + self._block_rows]
            where = self._upload(np.stack([some, rows[some]]))
            columns = self._upload(self._columns[:, rows[some], None]).to(logits.dtype)
            shaped.index_copy_(0, where[0], self._penalise(shaped.index_select(0, where[0]), where[1], columns))
        return shaped

    def _penalise(self, logits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        repetition, frequency, presence = columns
        counts, in_prompt = self._outputs.index_select(0, rows), self._prompts.index_select(0, rows)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(in_prompt | (counts > 0), repeated, logits)
        return logits.sub_(counts * frequency).sub_((counts > 0) * presence)

    def count(self, rows: Ints, tokens: torch.Tensor) -> None:
        entries = np.flatnonzero(self._is_active[rows])
        if len(entries):
            where = self._upload(np.stack([entries, rows[entries]]))
            self._outputs[where[1], tokens.index_select(0, where[0])] += 1
