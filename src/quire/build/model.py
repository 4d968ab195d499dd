"""The second step: text, weights, and the model on its pages.

checkpoint ──▶ Text (tokenizer, grammars)
checkpoint ──▶ Weights ──▶ PlacedModel, on the CPU or on a GPU
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.build.plan import read_shape
from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.failures import RowFailures
from quire.fetch.folder import Progress, in_silence, keep_compiled
from quire.options.run import RunOptions
from quire.plan.plan import Plan

if TYPE_CHECKING:
    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer
    from quire.worker.steps.meter import Meter
    from quire.worker.steps.place import PlacedModel, Weights

TORCH_NAMES = {DType.FP32: "float32", DType.BF16: "bfloat16", DType.FP16: "float16"}


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """What turns text into tokens and back, and what constrains it."""

    tokenizer: Tokenizer
    grammars: Grammars
    failures: RowFailures
    """Rows whose grammar cannot continue, for the engine."""


def read_text(folder: Path, draft: Path | None) -> Text:
    """A draft model with another tokenizer is refused."""
    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer

    tokenizer, failures = Tokenizer.load(folder), RowFailures()
    if draft is not None:
        _require_same_tokens(tokenizer, folder, Tokenizer.load(draft), draft)
    return Text(tokenizer, Grammars(tokenizer, failures.report), failures)


def meter_of(options: RunOptions) -> Meter | None:
    """Measures a GPU's memory; a CPU has none."""
    if options.device == "cpu":
        return None
    import torch

    from quire.worker.steps.meter import Meter

    meter = Meter(torch.device(options.device))
    meter.begin()
    return meter


def read_weights(
    folder: Path, plan: Plan, options: RunOptions, meter: Meter | None = None, progress: Progress = in_silence
) -> Weights:
    """The weights of a checkpoint folder and of the draft model, on their device, tried against the plan."""
    if meter is not None:
        keep_compiled()
    from quire.worker.model.positions import fix_positions
    from quire.worker.steps.place import Weights
    from quire.worker.support.check_model import check_model
    from quire.worker.support.processor import require_products

    if meter is None:
        require_products(TORCH_NAMES[options.weights_dtype])
    draft, weights = options.draft_path, Weights(_read(folder, options, meter, progress))
    if draft is not None:
        layers = len(read_shape(draft, options).layers)
        weights = Weights(weights.model, _read(draft, options, meter, progress), layers)
    for model, part in weights.with_layers(plan.stages[0]):
        fix_positions(model, plan.max_length)
        check_model(model, part)
    return weights


def _read(folder: Path, options: RunOptions, meter: Meter | None, progress: Progress) -> Any:
    from quire.worker.model.model import load
    from quire.worker.pages.arena import DTYPES

    model = load(folder, DTYPES[options.weights_dtype.value], partial(progress, "load"))
    return model if meter is None else model.to(meter.device)


def place_model(plan: Plan, weights: Weights, options: RunOptions, meter: Meter | None = None) -> PlacedModel:
    """The model on pages of its own: on the meter's device, or without one on the CPU."""
    if meter is None:
        from quire.worker.steps.place import place_on_cpu

        return place_on_cpu(plan, weights, options)
    from quire.worker.steps.boot import place_on_gpu  # needs Triton, which a CPU does without

    return place_on_gpu(plan, weights, meter, options)


def _require_same_tokens(tokenizer: Tokenizer, folder: Path, drafting: Tokenizer, draft: Path) -> None:
    own, other = (one.inner.get_vocab(with_added_tokens=True) for one in (tokenizer, drafting))
    if own != other:
        differing = sum(own.get(text) != number for text, number in other.items())
        raise InputError(
            f"draft model {draft.name} numbers {differing:,} of its {len(other):,} tokens otherwise than "
            f"{folder.name}: guesses need the same tokenizer, so choose a draft model of the same family"
        )
