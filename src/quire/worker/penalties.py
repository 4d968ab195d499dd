"""Which tokens each row has seen, for those rows that are penalised for repeating themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from quire.core.sampling import Sampling


class Penalties:
    """Counts take 5 bytes per row and token of the vocabulary, from the first request on that needs them."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (rows, vocab_size), device
        self._active: dict[int, Sampling] = {}
        self._outputs = torch.empty(0)
        """[rows, v]: how often each token was put out."""
        self._prompts = torch.empty(0)
        """[rows, v]: whether the prompt has it."""

    def enter(
        self, row: int, sampling: Sampling, prompt: npt.NDArray[np.int64], outputs: npt.NDArray[np.int64]
    ) -> None:
        self._active.pop(row, None)
        if not sampling.has_penalties:
            return
        if not self._outputs.numel():
            self._outputs = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._prompts = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._active[row] = sampling
        counts = np.bincount(outputs, minlength=self._shape[1]).astype(np.int32)
        self._outputs[row] = torch.from_numpy(counts).to(self._device)
        self._prompts[row] = False
        self._prompts[row, torch.from_numpy(prompt).to(self._device)] = True

    def applied(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """The logits themselves where no row is penalised, else new ones."""
        entries = [entry for entry, row in enumerate(rows) if row in self._active]
        if not entries:
            return logits
        active = [self._active[rows[entry]] for entry in entries]
        where = [rows[entry] for entry in entries]
        penalised, counts = logits[entries], self._outputs[where]
        repetition = _column([sampling.repetition_penalty for sampling in active], logits)
        repeated = torch.where(penalised > 0, penalised / repetition, penalised * repetition)
        penalised = torch.where(self._prompts[where] | (counts > 0), repeated, penalised)
        penalised -= counts * _column([sampling.frequency_penalty for sampling in active], logits)
        penalised -= (counts > 0) * _column([sampling.presence_penalty for sampling in active], logits)
        shaped = logits.clone()
        shaped[entries] = penalised
        return shaped

    def count(self, rows: list[int], tokens: torch.Tensor) -> None:
        entries = [entry for entry, row in enumerate(rows) if row in self._active]
        if entries:
            where = torch.tensor([rows[entry] for entry in entries], device=self._device)
            self._outputs[where, tokens[entries]] += 1


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
