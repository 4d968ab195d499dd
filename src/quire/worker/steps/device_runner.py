"""A `Runner` on a device that runs ahead of Python: steps follow each other there, results are collected later.

    Python   launch 1 │ launch 2 │ collect 1 │ schedule 3 │ launch 3 │ collect 2 …
    device            ├──────── 1 ───────┼──────── 2 ───────┼──────── 3 …

A step that computes tokens which the previous step sampled finds them on the device. Decode steps are played from
recordings where there are some. Grammars, log-probabilities and speculation wait for the tokens of their own step; a
draft model waits for those of the previous step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from quire.core.logprobs import StepLogprobs
from quire.core.step import Step, StepResult
from quire.worker.backends.batch import Padding
from quire.worker.pages.captures import copy_captures
from quire.worker.pages.uploads import NoEvent, StagedUpload, carry, event_on
from quire.worker.ranks.share import own_part
from quire.worker.sampling.logprobs import Targets
from quire.worker.steps.drafting import verify_drafts
from quire.worker.steps.graphs import DecodeGraphs, Tables, pad_step, why_not
from quire.worker.steps.runner import Pieces, TorchRunner


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """A step whose tokens may not have arrived."""

    step: Step
    tokens: torch.Tensor
    """In main memory, complete after `done`."""
    done: NoEvent | torch.cuda.Event
    logprobs: StepLogprobs | None


class DeviceRunner(TorchRunner):
    """Queues each step on the device and returns."""

    goes_on = False  # NCCL's calls follow one another on the device's stream

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tokens_before = torch.zeros(self.plan.max_requests + 1, dtype=torch.int64, device=self.device)
        """The token that each row sampled last; the place after the last row is for padding."""
        self._staged = StagedUpload(self.device)
        self._in_flight: deque[InFlight] = deque()
        self.graphs: DecodeGraphs | None = None
        self._why_no_graphs = "recordings were not requested"

    def record(self, counts: Sequence[int], tables: Tables) -> None:
        """Records decode steps for these row counts. No step may be in flight."""
        self._why_no_graphs = why_not(self.model)
        if not self._why_no_graphs:
            own = () if self._memory is None else tables[self._memory]
            self.graphs = DecodeGraphs(self.model, self._tokens_before, counts, (own,))

    def recording(self, step: Step) -> tuple[int, bool] | None:
        own = own_part(step, self._memory)
        return self.graphs.choice(own) if self.graphs is not None and self.graphs.takes(own) else None

    def describe(self) -> str:
        """How decode steps run."""
        if self.graphs is None:
            return f"decode steps are not recorded: {self._why_no_graphs}"
        return f"decode steps are recorded for {', '.join(map(str, self.graphs.row_counts))} rows"

    def kernels(self) -> tuple[str, ...]:
        """Which backend runs each kind, and why no faster one does; a draft model's kinds too."""
        models = [self.model, *([] if self.draft is None else [self.draft.model])]
        return tuple(dict.fromkeys(choice.describe() for model in models for choice in model.choices))

    def _fill_in(self, step: Step) -> Step:
        """Only a draft model needs the tokens here; `_forward` and recordings find them on the device."""
        if self.draft is None:
            return step
        self._last[:] = self._tokens_before[:-1].cpu().numpy()
        return super()._fill_in(step)

    def _compute(self, step: Step, prompt: Targets) -> tuple[Pieces, torch.Tensor | None]:
        """A recording takes the likeliest tokens itself."""
        if self.graphs is None or prompt.size or not self.graphs.takes(step):
            return super()._compute(step, prompt)
        played = self.graphs.play(step)
        copy_captures(step, self.arena)
        is_plain = self.member.share.is_whole and self.sampler.is_plain(step.rows)
        tokens = played.tokens if is_plain else None
        return self._exchange(iter([played.logits]), [played.logits.shape[0]]), tokens

    def _forward(self, step: Step, places: np.ndarray) -> Pieces:
        staged = self._staged
        staged.begin()
        whole, padding = step, None
        if self.model.is_invariant and step.tokens == 1:  # compiled layers treat a single token differently
            whole, padding = pad_step(step, 2, self.plan.max_requests), Padding(1, self.arena.spare_address, None)
        batch = self.model.prepare(whole, staged, padding)
        token_ids, wanted = staged(whole.token_ids.astype(np.int64)), staged(places)
        rows = staged(np.repeat(whole.rows, whole.counts))
        staged.flush()
        known = torch.where(token_ids < 0, self._tokens_before[rows], token_ids)
        return self.model.pieces(known, batch, self._cut(step, wanted))

    def sample(self, step: Step, logits: torch.Tensor) -> torch.Tensor:
        """Keeps the last token of each row on the device; the next step needs no more of a row with drafts."""
        tokens = super().sample(step, logits)
        entries, _, _ = step.sample_places()
        last = np.flatnonzero(np.diff(entries, append=-1))
        where = self.arena.upload(np.stack([step.rows[entries[last]], last]))
        self._tokens_before.index_copy_(0, where[0], tokens[where[1]])
        return tokens

    def _finish(self, step: Step, tokens: torch.Tensor, logprobs: StepLogprobs | None = None) -> None:
        """Queues the copy of the tokens to main memory."""
        host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        carry(host, tokens)
        done = event_on(self.device)
        done.record()
        self._in_flight.append(InFlight(step, host, done, logprobs))

    def collect(self) -> StepResult:
        flight = self._in_flight.popleft()
        flight.done.synchronize()
        return replace(verify_drafts(flight.step, flight.tokens.numpy()), logprobs=flight.logprobs)
