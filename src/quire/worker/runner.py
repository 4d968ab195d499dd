"""A `Runner` on torch: copies, clears, one forward pass, a token for each row that samples, more where drafts come
true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from quire.core.drafting import verified
from quire.core.errors import ModelError
from quire.core.sampling import Grammar
from quire.core.step import SAMPLED, Step, StepResult
from quire.plan.plan import Plan
from quire.worker.arena import Arena
from quire.worker.drafting import DraftModel
from quire.worker.logprobs import Scorer, Wanted, judged, packed_places, together
from quire.worker.model import TorchModel
from quire.worker.sampler import Masks, Sampler
from quire.worker.staging import Staging


class Grammars(Masks, Protocol):
    """What outputs must look like, by row."""

    def enter(self, row: int, grammar: Grammar | None, output_tokens: Sequence[int]) -> None: ...


def _require_ropes(plan: Plan, model: TorchModel, draft: DraftModel | None) -> None:
    """Keys in the pool are named after the plan's frequencies: those must be the ones that the models have."""
    guessing = [] if draft is None else [f"draft {rope}" for rope in draft.model.ropes]
    found = ", ".join((*model.ropes, *guessing))
    if found != plan.rope:
        raise ModelError(
            f"{type(model.model).__name__} has rotary frequencies {found or 'for any length'!r} where requests have up "
            f"to {plan.max_length:,} tokens, planned is {plan.rope or 'for any length'!r}: make the plan again from it"
        )


class TorchRunner:
    def __init__(
        self,
        plan: Plan,
        model: TorchModel,
        arena: Arena,
        grammars: Grammars | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        """`draft`: makes the guesses that steps leave open."""
        _require_ropes(plan, model, draft)
        self.plan = plan
        self.model = model
        self.draft = draft
        self.arena = arena
        self.device = arena.bytes.device
        self.sampler = Sampler(plan.max_requests, model.vocab_size, self.device, grammars)
        self.scorer = Scorer()
        self._piece_rows = min(plan.max_requests, plan.batch_tokens)
        """Rows of logits that every step may have."""
        self._grammars = grammars
        self._last = np.zeros(plan.max_requests, dtype=np.int32)
        """The token that each row yielded last: the next step may need it before anyone else knows it."""
        self._results: list[StepResult] = []
        self.staging: Staging | None = None
        """Where pages are copied from and to for a tier, if there is one."""

    def launch(self, step: Step) -> None:
        self._prepare(step)
        if not len(step.rows):
            self._results.append(StepResult(step.number, np.empty(0, dtype=np.int64)))
            return
        known = self._tokens(step)
        step = replace(step, token_ids=known if self.draft is None else self.draft.fill(step, known))
        prompt = self.scorer.prompt_tokens(step)
        batch = self.model.prepare(step)
        entries, places, _ = step.sampled()
        token_ids = torch.from_numpy(step.token_ids.astype(np.int64)).to(self.device)
        wanted = torch.from_numpy(np.concatenate([places, packed_places(step, prompt)])).to(self.device)
        logits = self.model.pieces(token_ids, batch, self._cut(wanted, len(entries)))
        drawn_from = next(logits)
        tokens = self.sample(step, drawn_from)
        drawn = self.scorer.drawn_tokens(step, tokens)
        blocks = judged(drawn, drawn_from, most := max(drawn.most, prompt.most))
        del drawn_from  # before the next piece needs its place
        blocks += self._judged_prompt(prompt, logits, most)
        result = replace(verified(step, tokens), logprobs=together(drawn, prompt, blocks))
        last = slice(None) if result.counts is None else np.cumsum(result.counts) - 1
        self._last[step.rows[step.samples]] = result.tokens[last]
        self._results.append(result)

    def skip(self, step: Step) -> None:
        """Everything but the model: rows that sample yield token 0. For benches."""
        self._prepare(step)
        self._last[step.rows[step.samples]] = 0
        self._results.append(StepResult(step.number, np.zeros(len(step.sampled()[0]), dtype=np.int64)))

    def _cut(self, places: torch.Tensor, first: int) -> list[torch.Tensor]:
        """Places where tokens are drawn, then those of prompts in pieces of no more rows."""
        starts = range(first, len(places), self._piece_rows)
        return [places[:first], *(places[start : start + self._piece_rows] for start in starts)]

    def _judged_prompt(self, prompt: Wanted, logits: Iterator[torch.Tensor], most: int) -> list[list[np.ndarray]]:
        return [block for part in prompt.pieces(self._piece_rows) for block in judged(part, next(logits), most)]

    def sample(self, step: Step, logits: torch.Tensor) -> np.ndarray:
        """A token for each place where rows sample. Drafts leave no trace here: who may guess has no history."""
        entries, _, positions = step.sampled()
        sampled = self.sampler.sample(logits, step.rows[entries], positions)
        return np.asarray(sampled.cpu().numpy(), dtype=np.int64)

    def collect(self) -> StepResult:
        return self._results.pop(0)

    def _prepare(self, step: Step) -> None:
        for place, (_, kind, source, target) in enumerate(step.copies):
            self._store(step, place)
            self._let_write(kind, target, source)
            self.arena.copy(kind, source, target)
        self._store(step, len(step.copies))
        if step.loads:
            assert self.staging is not None, "a load needs staging memory"
            self.staging.load(step.loads, step.tables)
        for _, kind, pages in step.clears:
            self._let_write(kind, pages, pages)
            self.arena.clear(kind, pages)
        if self.staging is not None:
            self.staging.before_rows(step)
        for row, request, outputs in step.entered:
            self.sampler.enter(row, request.sampling, request.prompt, outputs, request.stop_tokens)
            self.scorer.enter(row, request)
            if self._grammars is not None:
                self._grammars.enter(row, request.sampling.grammar, outputs.tolist())

    def _store(self, step: Step, place: int) -> None:
        """What is due before the copy at `place`."""
        stores = [store for store in step.stores if store.after == place]
        if stores:
            assert self.staging is not None, "a store needs staging memory"
            self.staging.store(stores)

    def _let_write(self, kind: int, written: np.ndarray, read: np.ndarray) -> None:
        if self.staging is not None:
            self.staging.before_write(kind, written, read)

    def _tokens(self, step: Step) -> np.ndarray:
        index = np.repeat(step.rows, step.counts)
        return np.where(step.token_ids == SAMPLED, self._last[index], step.token_ids)
