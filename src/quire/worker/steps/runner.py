"""A `Runner` on torch. `launch` is the path of a step on every device; `DeviceRunner` replaces parts of it.

pages moved ─▶ open tokens filled in ─▶ layers ─▶ logits ─▶ tokens sampled ─▶ log-probabilities ─▶ result

On the first stage of a pipeline a launch ends after its layers, and the rest follows when the result is collected: the
other stages compute meanwhile, and this one begins the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch

from quire.core.errors import ModelError
from quire.core.logprobs import StepLogprobs
from quire.core.request import Request
from quire.core.sampling import Grammar
from quire.core.step import SAMPLED, Step, StepResult
from quire.options.run import DEFAULTS, RunOptions
from quire.plan.plan import Plan
from quire.worker.model.drafting import DraftModel
from quire.worker.model.model import TorchModel
from quire.worker.pages.arena import Arena
from quire.worker.pages.staging import Staging
from quire.worker.ranks.member import NO_OTHERS, Member
from quire.worker.ranks.share import memory_of, own_part
from quire.worker.sampling.logprobs import NO_TARGETS, Block, Scorer, Targets, join_scores, places_before, score
from quire.worker.sampling.sampler import Masks, Sampler
from quire.worker.steps.drafting import verify_drafts

Pieces = Iterator[torch.Tensor]
"""Logits: where rows sample, then those of prompts that are scored."""


class GrammarMasks(Masks, Protocol):
    """Masks of rows whose outputs follow a grammar."""

    def enter(self, row: int, grammar: Grammar | None, output_tokens: Sequence[int]) -> None: ...


def _require_ropes(plan: Plan, model: TorchModel, draft: DraftModel | None) -> None:
    """Keys in the pool are named after the plan's rotary frequencies: the models must have the same."""
    drafting = [] if draft is None else [f"draft {rope}" for rope in draft.model.ropes]
    found = ", ".join((*model.ropes, *drafting))
    if found != plan.rope:
        raise ModelError(
            f"{type(model.model).__name__} has rotary frequencies {found or 'for any length'!r} where requests have up "
            f"to {plan.max_length:,} tokens, planned is {plan.rope or 'for any length'!r}: make the plan again from it"
        )


@dataclass(eq=False, repr=False)
class TorchRunner:
    """Completes each step before `launch` returns; the first stage of a pipeline before `collect` does."""

    plan: Plan
    model: TorchModel
    arena: Arena
    grammars: GrammarMasks | None = None
    draft: DraftModel | None = None
    """Fills in the draft tokens that steps leave open."""
    _: KW_ONLY
    staging: Staging | None = None
    """Copies pages between the arena and a tier's host memory."""
    options: RunOptions = DEFAULTS
    """How the model is run: for options that are read while steps run."""
    member: Member = NO_OTHERS
    """Every process of a group launches the same steps. The first samples, and gives the tokens to its stage."""

    goes_on: ClassVar[bool] = True
    """Whether the first stage of a pipeline goes on while the others compute its logits."""

    def __post_init__(self) -> None:
        self._memory = memory_of(self.plan, self.member.share)
        _require_ropes(self.plan, self.model, self.draft)
        rows = self.plan.max_requests
        self.device = self.arena.bytes.device
        self.sampler = Sampler(rows, self.model.vocab_size, self.device, self.grammars)
        self.scorer = Scorer()
        self._piece_rows = min(rows, self.plan.batch_tokens)
        """Rows of logits that every step may have."""
        self._last = np.zeros(rows, dtype=np.int32)
        """The token that each row sampled last: the next step may compute it before the engine knows it."""
        self._results: list[StepResult] = []
        self._open: deque[tuple[Step, Callable[[], None]]] = deque()
        """Steps whose layers are computed, and what is left to do."""

    def launch(self, step: Step) -> None:
        step = own_part(step, self._memory)
        if self._open and step.entered:
            self._complete_those_of([row for row, _, _ in step.entered])
        self._prepare(step)
        prompt = NO_TARGETS
        if len(step.rows):
            step = self._fill_in(step)
            prompt = self.scorer.prompt_targets(step)
            rest = partial(self._complete, step, prompt, *self._compute(step, prompt))
        else:
            rest = partial(self._finish, step, torch.empty(0, dtype=torch.int64, device=self.device))
        self._open.append((step, rest))
        if not (self._receives_logits and self.goes_on) or prompt.size:  # logits of prompts come piece after piece
            self._complete_all()

    @property
    def _receives_logits(self) -> bool:
        return self.member.share.leads and self.member.share.stages > 1

    def _complete_all(self) -> None:
        while self._open:
            self._open.popleft()[1]()

    def _complete_those_of(self, rows: list[int]) -> None:
        """Before their rows are given to other requests."""
        if any(np.isin(step.rows, rows).any() for step, _ in self._open):
            self._complete_all()

    def _complete(self, step: Step, prompt: Targets, pieces: Pieces, tokens: torch.Tensor | None) -> None:
        """From logits to the result. `tokens`: those that a recording has taken."""
        logits = next(pieces)
        if tokens is None:
            tokens = self.sample(step, logits)
        if not self.member.share.leads:
            deque(pieces, maxlen=0)  # logits of prompts, of which the group's first process needs this part
            self._finish(step, tokens)
            return
        outputs = self.scorer.output_targets(step, tokens)
        scores = score(outputs, logits, most := max(outputs.most, prompt.most))
        del logits  # before the next piece needs its memory
        scores += self._score_prompt(prompt, pieces, most)
        self._finish(step, tokens, join_scores(outputs, prompt, scores))

    def recording(self, step: Step) -> tuple[int, bool] | None:
        """Rows of the recording that a step can be played from, and whether rows are cut there; None: there is none."""
        del step
        return None

    def skip(self, step: Step) -> None:
        """Everything but the model: rows that sample get token 0. For benches."""
        step = own_part(step, self._memory)
        self._prepare(step)
        self._finish(step, torch.zeros(len(step.sample_places()[0]), dtype=torch.int64, device=self.device))

    def collect(self) -> StepResult:
        if not self._results:
            self._open.popleft()[1]()
        return self._results.pop(0)

    def sample(self, step: Step, logits: torch.Tensor) -> torch.Tensor:
        """A token for each place where rows sample. Rows whose sampling depends on their outputs (penalties, grammars)
        have no drafts, so a rejected draft leaves no trace."""
        entries, _, positions = step.sample_places()
        if self.member.share.leads:
            tokens = self.sampler.sample(logits, step.rows[entries], positions)
        else:
            tokens = torch.zeros(len(entries), dtype=torch.int64, device=self.device)
        if self.member.share.stages == 1:  # no step of a pipeline computes tokens of one that is in flight
            self.member.collective.broadcast(tokens)
        return tokens

    # ── the parts of a launch that a device may do differently ────────────

    def _fill_in(self, step: Step) -> Step:
        """The step with all tokens that it computes: those sampled last, and drafts."""
        index = np.repeat(step.rows, step.counts)
        known = np.where(step.token_ids == SAMPLED, self._last[index], step.token_ids)
        return replace(step, token_ids=known if self.draft is None else self.draft.fill(step, known))

    def _compute(self, step: Step, prompt: Targets) -> tuple[Pieces, torch.Tensor | None]:
        """Logits where rows sample, then those of prompts; and the tokens, if they are known already."""
        places = np.concatenate([step.sample_places()[1], places_before(step, prompt)])
        counts = [len(cut) for cut in self._cut(step, torch.from_numpy(places))]
        return self._exchange(self._forward(step, places), counts), None

    def _exchange(self, pieces: Pieces, counts: Sequence[int]) -> Pieces:
        """Logits go from the last stage to the first, whose layers are computed here. `counts`: of rows."""
        if self._receives_logits:
            deque(pieces, maxlen=0)
            return self._receive(counts, self._expect(counts[0]))
        return self._send(pieces) if self.member.share.sends_logits else pieces

    def _send(self, pieces: Pieces) -> Pieces:
        for piece in pieces:
            if len(piece):
                self.member.line.send(piece.to(self.model.model.dtype).contiguous(), 0)
            yield piece

    def _receive(self, counts: Sequence[int], first: Callable[[], torch.Tensor]) -> Pieces:
        yield first()
        for count in counts[1:]:
            yield self._expect(count)()

    def _expect(self, count: int) -> Callable[[], torch.Tensor]:
        """Logits of so many rows, once they are waited for."""
        share, dtype = self.member.share, self.model.model.dtype
        logits = torch.empty(count, self.model.vocab_size, dtype=dtype, device=self.device)
        wait = self.member.line.expect(logits, share.stages - 1) if count else None

        def arrived() -> torch.Tensor:
            if wait is not None:
                wait()
            return logits.float()

        return arrived

    def _forward(self, step: Step, places: np.ndarray) -> Pieces:
        """Logits at these places of the packed tokens."""
        batch = self.model.prepare(step)
        token_ids, wanted = (torch.from_numpy(a.astype(np.int64)).to(self.device) for a in (step.token_ids, places))
        return self.model.pieces(token_ids, batch, self._cut(step, wanted))

    def _finish(self, step: Step, tokens: torch.Tensor, logprobs: StepLogprobs | None = None) -> None:
        """Keeps the result until it is collected."""
        result = replace(verify_drafts(step, tokens.cpu().numpy()), logprobs=logprobs)
        last = slice(None) if result.counts is None else np.cumsum(result.counts) - 1
        self._last[step.rows[step.samples]] = result.tokens[last]
        self._results.append(result)

    # ── the parts that are the same on every device ───────────────────────

    def _cut(self, step: Step, places: torch.Tensor) -> list[torch.Tensor]:
        """Places where rows sample, then those of prompts in pieces of at most `_piece_rows`."""
        first = len(step.sample_places()[0])
        starts = range(first, len(places), self._piece_rows)
        return [places[:first], *(places[start : start + self._piece_rows] for start in starts)]

    def _score_prompt(self, prompt: Targets, pieces: Pieces, most: int) -> list[Block]:
        return [block for part in prompt.pieces(self._piece_rows) for block in score(part, next(pieces), most)]

    def _prepare(self, step: Step) -> None:
        """Moves pages, and gives rows to the requests that entered."""
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
            self.scorer.enter(row, request)
            if self.member.share.leads:
                self._enter(row, request, outputs)

    def _enter(self, row: int, request: Request, outputs: np.ndarray) -> None:
        self.sampler.enter(row, request.sampling, request.prompt, outputs, request.stop_tokens)
        if self.grammars is not None:
            self.grammars.enter(row, request.sampling.grammar, outputs.tolist())

    def _store(self, step: Step, place: int) -> None:
        """Starts the stores that precede the copy at `place`."""
        stores = [store for store in step.stores if store.after == place]
        if stores:
            assert self.staging is not None, "a store needs staging memory"
            self.staging.store(stores)

    def _let_write(self, kind: int, written: np.ndarray, read: np.ndarray) -> None:
        if self.staging is not None:
            self.staging.before_write(kind, written, read)
