"""A `Runner` on a device that works while Python goes on: steps follow each other there, results come when asked for.

    Python   launch 1 │ launch 2 │ collect 1 │ schedule 3 │ launch 3 │ collect 2 …
    device            ├──────── 1 ───────┼──────── 2 ───────┼──────── 3 …

A step that goes on from tokens which the one before yields finds them on the device. Decode steps are played from
recordings where there are some. Grammars, log-probabilities and speculation wait for the tokens of their own step; a
draft model, for those of the step before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from quire.core.drafting import verified
from quire.core.logprobs import StepLogprobs
from quire.core.step import Step, StepResult
from quire.plan.plan import Plan
from quire.worker.arena import Arena
from quire.worker.batch import Padding
from quire.worker.captures import copy_captured
from quire.worker.drafting import DraftModel
from quire.worker.graphs import DecodeGraphs, Tables, padded, why_not
from quire.worker.logprobs import NOTHING, Wanted, judged, packed_places, together
from quire.worker.model import TorchModel
from quire.worker.runner import Grammars, TorchRunner
from quire.worker.uploads import Now, Staged, carry, event_on


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    step: Step
    tokens: torch.Tensor
    """In main memory, from `done` on."""
    done: Now | torch.cuda.Event
    logprobs: StepLogprobs | None = None


class DeviceRunner(TorchRunner):
    def __init__(
        self,
        plan: Plan,
        model: TorchModel,
        arena: Arena,
        grammars: Grammars | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        super().__init__(plan, model, arena, grammars, draft)
        self._tokens_before = torch.zeros(plan.max_requests + 1, dtype=torch.int64, device=self.device)
        """What each row yielded last; the place behind the last row is for padding."""
        self._staged = Staged(self.device)
        self._flights: deque[_Flight] = deque()
        self.graphs: DecodeGraphs | None = None
        self.no_graphs_because = "nobody asked for it"
        self.recorded_rows: tuple[int, ...] = ()

    def record(self, counts: Sequence[int], tables: Tables) -> None:
        """Decode steps of up to the greatest of these row counts are played from now on. Nobody may be running."""
        self.no_graphs_because = why_not(self.model)
        if not self.no_graphs_because:
            self.graphs = DecodeGraphs(self.model, self._tokens_before, counts, tables)
            self.recorded_rows = tuple(sorted(counts))

    def launch(self, step: Step) -> None:
        self._prepare(step)
        if not len(step.rows):
            self._fly(step, torch.empty(0, dtype=torch.int64, device=self.device))
            return
        if self.draft is not None:
            self._last[:] = self._tokens_before[:-1].cpu().numpy()
            step = replace(step, token_ids=self.draft.fill(step, self._tokens(step)))
        prompt = self.scorer.prompt_tokens(step)
        more: Iterator[torch.Tensor] = iter(())
        if self.graphs is not None and self.graphs.takes(step) and prompt is NOTHING:
            played = self.graphs.play(step)
            copy_captured(step, self.arena)
            logits, tokens = played.logits, played.tokens
            if not self.sampler.is_plain(step.rows):
                tokens = self._draw(step, logits.float())
        else:
            more = self._compute(step, prompt)
            logits = next(more)
            tokens = self._draw(step, logits)
        drawn = self._drawn(step, tokens)
        blocks = judged(drawn, logits, most := max(drawn.most, prompt.most))
        del logits  # before the next piece needs its place
        blocks += self._judged_prompt(prompt, more, most)
        self._fly(step, tokens, together(drawn, prompt, blocks))

    def describe(self) -> str:
        """How decode steps run."""
        if self.graphs is None:
            return f"decode steps are not recorded: {self.no_graphs_because}"
        return f"decode steps are recorded for {', '.join(map(str, self.recorded_rows))} rows"

    def kernels(self) -> tuple[str, ...]:
        """Who runs each kind, and why nobody faster does; a draft model's kinds too."""
        models = [self.model, *([] if self.draft is None else [self.draft.model])]
        return tuple(dict.fromkeys(choice.told() for model in models for choice in model.choices))

    def skip(self, step: Step) -> None:
        self._prepare(step)
        self._fly(step, torch.zeros(len(step.sampled()[0]), dtype=torch.int64, device=self.device))

    def _compute(self, step: Step, prompt: Wanted) -> Iterator[torch.Tensor]:
        """Logits where rows sample, then, in pieces, those of prompts that somebody asked about."""
        staged = self._staged
        staged.begin()
        places = np.concatenate([step.sampled()[1], packed_places(step, prompt)])
        whole, padding = step, None
        if self.model.is_invariant and step.tokens == 1:  # compiled layers take one token as something else
            whole, padding = padded(step, 2, self.plan.max_requests), Padding(1, self.arena.spare_address, None)
        batch = self.model.prepare(whole, staged, padding)
        token_ids, wanted = staged(whole.token_ids.astype(np.int64)), staged(places)
        rows = staged(np.repeat(whole.rows, whole.counts))
        staged.flush()
        known = torch.where(token_ids < 0, self._tokens_before[rows], token_ids)
        return self.model.pieces(known, batch, self._cut(wanted, len(step.sampled()[0])))

    def _draw(self, step: Step, logits: torch.Tensor) -> torch.Tensor:
        """A token for each place where rows sample. Of a row with drafts, the next step needs nothing from here."""
        entries, _, positions = step.sampled()
        tokens = self.sampler.sample(logits, step.rows[entries], positions)
        last = np.flatnonzero(np.diff(entries, append=-1))
        where = self.arena.upload(np.stack([step.rows[entries[last]], last]))
        self._tokens_before.index_copy_(0, where[0], tokens[where[1]])
        return tokens

    def _drawn(self, step: Step, tokens: torch.Tensor) -> Wanted:
        """Waits for the tokens only where somebody asked about them."""
        return self.scorer.drawn_tokens(step, tokens.cpu().numpy()) if self.scorer.is_asked(step) else NOTHING

    def _fly(self, step: Step, tokens: torch.Tensor, logprobs: StepLogprobs | None = None) -> None:
        host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        carry(host, tokens)
        done = event_on(self.device)
        done.record()
        self._flights.append(_Flight(step, host, done, logprobs))

    def collect(self) -> StepResult:
        flight = self._flights.popleft()
        flight.done.synchronize()
        result = verified(flight.step, flight.tokens.numpy())
        return result if flight.logprobs is None else replace(result, logprobs=flight.logprobs)
