"""Every causal language model of the installed transformers, tiny and random: does it yield the tokens it should?

pass      whatever happens to them, requests yield the tokens that transformers' own forward pass would choose
refused   Quire says by name why it does not run this model
fails     tokens differ, or something broke that nobody foresaw, or what should have happened to requests did not
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.core.errors import QuireError
from quire.models.shape import ModelShape
from quire.plan.plan import Plan
from quire.sweep.case import LONGEST, Case, planned, random_model, shape_of
from quire.sweep.disturbed import disturb
from quire.worker.model.positions import fix_positions
from quire.worker.support.check_model import check_model


@dataclass(frozen=True, slots=True)
class Finding:
    type: str
    verdict: str
    reason: str = ""
    options: str = ""
    happened: Mapping[str, int] = field(default_factory=dict)
    """To the requests: hits, accepted drafts, preemptions, loads."""

    @property
    def name(self) -> str:
        return f"{self.type}: {self.options}" if self.options else self.type


def types() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def sweep(cases: Iterable[Case]) -> Iterator[Finding]:
    with on_one_thread():
        for case in cases:
            yield examine(case)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Models are too small to be divided."""
    logger: Any = transformers.logging
    logger.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def examine(case: Case) -> Finding:
    return examine_by(_examined, case)


def examine_by(examined: Callable[[Case], Finding], case: Case) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return examined(case)
    except QuireError as error:
        return Finding(case.type, "refused", short(error), case.label)
    except Exception as error:
        return Finding(case.type, "fails", short(error), case.label)


def _examined(case: Case) -> Finding:
    config = case.config
    shape = shape_of(config, case.type)
    plan = planned(case, shape)
    model = random_model(config)
    _probe(model, plan, shape)
    wrong, happened = disturb(case, shape, model)
    if not wrong and (lacking := happened.lacking()):
        wrong = f"not checked: there were no {' and no '.join(lacking)}"
    return Finding(case.type, "fails" if wrong else "pass", wrong, case.label, dict(happened.counts))


def _probe(model: Any, plan: Plan, shape: ModelShape) -> None:
    """As at load, for the longest requests that the model may have."""
    own = copy.deepcopy(model)
    fix_positions(own, min(LONGEST, shape.stretched_length or shape.max_length or LONGEST))
    check_model(own, plan.stages[0])


def short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, QuireError) else f"{type(error).__name__}: {text}"
