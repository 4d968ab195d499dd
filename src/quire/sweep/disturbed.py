"""The same requests four times, each time with something else happening to them; their tokens may not change.

cold        chunks of prompts and decode steps mixed, draft tokens guessed by n-grams
again       prefixes are found in the pool
crowded     in a pool for little more than the longest of them: requests are preempted
from host   the pool's cache is dropped and its memory spoilt: prefixes come from host memory
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from quire.build.tiers import attach
from quire.core.events import LoadFinished, RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.reasons import Why
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.engine.engine import Engine, Stream
from quire.kinds import Keeps
from quire.models.shape import ModelShape
from quire.options.tiers import Tiers
from quire.plan.plan import Plan
from quire.sweep.case import Case, planned
from quire.sweep.watched import WatchedRunner
from quire.text.ngrams import NGramDrafter
from quire.worker.model.model import NAME, TorchModel
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena

LOOKAHEAD = 3
SPARE_SHEETS = (0, -1, 1, -2, 2)
"""Beyond what all requests need when they begin: tried until one is preempted as they grow."""
CHOICE = (3, 7, 11, 19)
"""Tokens that outputs are made of: among so few, guesses of n-grams come true in any model."""
SAMPLING = Sampling(logit_bias=tuple((token, 100.0) for token in CHOICE))
HOST_BYTES = 32 << 20
TOLERANCE = 1e-3
"""Of the greatest logit. Most types stay within 1e-5; Mamba's own pass in fp32 is 7e-4 away from that in fp64."""


class System:
    """An engine on a copy of a model, with every byte of its pool spoilt before the start."""

    def __init__(self, plan: Plan, model: Any, is_tiered: bool = False) -> None:
        own = copy.deepcopy(model)
        own.set_attn_implementation(NAME)
        fix_positions(own, plan.max_length)
        self.arena = Arena(plan.stages[0], torch.device("cpu"))
        self.spoil()
        stack, staging = attach(plan, self.arena, Tiers(HOST_BYTES), "random") if is_tiered else (None, None)
        self.runner = WatchedRunner(plan, TorchModel(own, self.arena), self.arena, staging=staging)
        self.engine = Engine(plan, self.runner, tier=stack, keeper=stack, drafter=NGramDrafter())
        self.engine.scheduler.admission.typical_output = 1.0  # so that more are let in than will fit to their ends

    def spoil(self) -> None:
        self.arena.bytes.fill_(0xFF)  # not a number, in every dtype

    def drop_cache(self) -> None:
        self.engine.scheduler.reuse.index.drop()
        self.spoil()

    def ask(self, prompts: Sequence[np.ndarray], outputs: int, label: str) -> list[Stream]:
        requests = [Request(f"{label} {len(prompt)}", prompt, outputs, sampling=SAMPLING) for prompt in prompts]
        streams = [self.engine.submit(request) for request in requests]
        self.engine.drain()
        return streams


@dataclass(slots=True)
class Happened:
    """What was done to the requests; each of these must be."""

    counts: Counter[str] = field(default_factory=Counter)
    impossible: set[str] = field(default_factory=set)

    def note(self, system: System) -> None:
        sums, events = system.engine.counters.sums, system.engine.counters.events
        self.counts["hit tokens"] += sums[RequestAdmitted, "hit_tokens"]
        self.counts["accepted drafts"] += sums[TokensDrafted, "accepted"]
        self.counts["preemptions"] += events[RequestPreempted, Why.NEEDS_PAGES]
        self.counts["tokens from host"] += sums[LoadFinished, "tokens"]
        if system.engine.scheduler.drafts.disabled:
            self.impossible.add("accepted drafts")
        if system.engine.scheduler.reuse.index.disabled:
            self.impossible |= {"hit tokens", "tokens from host"}
        if all(kind.kind.keeps is Keeps.STATE for kind in system.arena.stage.kinds):
            self.impossible.add("preemptions")  # a row has all that it will ever need when it starts

    def lacking(self) -> list[str]:
        return [what for what, count in self.counts.items() if not count and what not in self.impossible]


def disturb(case: Case, shape: ModelShape, model: Any) -> tuple[str, Happened]:
    """What differs from transformers, or nothing; and what happened."""
    random = np.random.default_rng(0)
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [random.integers(3, vocabulary, length).astype(np.int32) for length in case.prompts]
    judge = Judge(case, prompts, model, is_padded=bool(shape.ropes))
    happened = Happened()
    roomy = System(planned(case, shape, LOOKAHEAD), model)
    wrong = judge.first_wrong(roomy, "cold") or judge.first_wrong(roomy, "again")
    happened.note(roomy)
    if wrong:
        return wrong, happened
    for spare_sheets in SPARE_SHEETS:
        tight = System(planned(case, shape, LOOKAHEAD, spare_sheets), model, is_tiered=True)
        wrong = judge.first_wrong(tight, "crowded")
        tight.drop_cache()
        wrong = wrong or judge.first_wrong(tight, "from host")
        happened.note(tight)
        if wrong or happened.counts["preemptions"] or "preemptions" in happened.impossible:
            break
    return wrong, happened


class Judge:
    """Compares with transformers' own forward pass, over a whole sequence in one call."""

    def __init__(self, case: Case, prompts: Sequence[np.ndarray], model: Any, is_padded: bool) -> None:
        """`is_padded`: calls have as many tokens as the plan's longest request, so that transformers picks the rotary
        frequencies of that length. What comes later is not seen by what comes before."""
        self._case, self._prompts = case, prompts
        self._call_tokens = case.max_length if is_padded else 0
        self._reference = copy.deepcopy(model).eval()
        self._reference.set_attn_implementation("eager")
        self._known: dict[bytes, torch.Tensor] = {}

    def first_wrong(self, system: System, label: str) -> str:
        """Sends all requests; what is wrong with them, or nothing."""
        outputs = self._case.outputs
        for prompt, stream in zip(self._prompts, system.ask(self._prompts, outputs, label), strict=True):
            tokens, name = stream.tokens(), stream.request.name
            found = torch.stack([system.runner.logits[name, len(prompt) + output] for output in range(outputs)])
            place = _first_wrong(self._logits(prompt, tokens), tokens, found)
            if place is not None:
                return f"{label}: token {place} of {outputs} after a prompt of {len(prompt)} differs"
        return ""

    @torch.inference_mode()
    def _logits(self, prompt: np.ndarray, tokens: np.ndarray) -> torch.Tensor:
        """(output, vocabulary): after the prompt, and after each token but the last."""
        sequence = np.concatenate([prompt, tokens[:-1]]).astype(np.int64)
        if (key := sequence.tobytes()) not in self._known:
            call = torch.zeros(max(len(sequence), self._call_tokens), dtype=torch.int64)
            call[: len(sequence)] = torch.from_numpy(sequence)
            logits = self._reference(input_ids=call[None], use_cache=False).logits[0]
            self._known[key] = logits[len(prompt) - 1 : len(sequence)].float()
        return self._known[key]


def _first_wrong(expected: torch.Tensor, tokens: np.ndarray, found: torch.Tensor) -> int | None:
    """Logits are near, all of them, and each token is the best choice after those before it."""
    near = TOLERANCE * expected.abs().max()
    chosen = expected.gather(1, torch.from_numpy(tokens.astype(np.int64))[:, None])[:, 0]
    is_best = expected[:, list(CHOICE)].max(dim=1).values - chosen <= near
    is_known = torch.isin(torch.from_numpy(tokens.astype(np.int64)), torch.tensor(CHOICE))
    right = is_known & is_best & ((expected - found).abs().amax(dim=1) <= near)
    return None if right.all() else int((~right).nonzero()[0])
