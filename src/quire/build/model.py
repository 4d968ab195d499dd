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
from quire.worker.ranks.share import WHOLE, Share, stage_of

if TYPE_CHECKING:
    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer
    from quire.worker.model.collective import Collective, Line
    from quire.worker.ranks.member import Member
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


def meter_of(options: RunOptions, share: Share = WHOLE) -> Meter | None:
    """Measures a GPU's memory; a CPU has none. `share`: whose ledger it is compared with."""
    if options.device == "cpu":
        return None
    import torch

    from quire.worker.steps.meter import Meter

    meter = Meter(torch.device(options.device), share)
    meter.begin()
    return meter


def read_weights(
    folder: Path,
    plan: Plan,
    options: RunOptions,
    meter: Meter | None = None,
    progress: Progress = in_silence,
    *,
    share: Share = WHOLE,
    collective: Collective | None = None,
    line: Line | None = None,
) -> Weights:
    """The weights of a checkpoint folder and of the draft model, on their device, tried against the plan. `share`: of
    this process, which reads nothing else. `collective` and `line` connect it to the others; all call this together."""
    if meter is not None:
        keep_compiled()
    from quire.worker.model.collective import ALONE, NO_LINE
    from quire.worker.ranks.member import Member
    from quire.worker.steps.place import Weights
    from quire.worker.support.processor import require_products

    if meter is None:
        require_products(TORCH_NAMES[options.weights_dtype])
    member = Member(share, collective or ALONE, line or NO_LINE)
    read = partial(_read, plan=plan, options=options, meter=meter, progress=progress, member=member)
    draft, weights = options.draft_path, Weights(read(folder), member=member)
    if draft is not None:
        layers = len(read_shape(draft, options).layers)
        weights = Weights(weights.model, read(draft), layers, member)
    check_weights(plan, weights)
    return weights


def check_weights(plan: Plan, weights: Weights) -> None:
    """Raises ModelError with what a model does otherwise than its plan. All processes of a group call this together."""
    from quire.worker.model.positions import fix_positions
    from quire.worker.support.check_model import check_model

    for model, part in weights.with_layers(stage_of(plan, weights.member.share)):
        fix_positions(model, plan.max_length)
        check_model(model, part)


def _read(
    folder: Path, *, plan: Plan, options: RunOptions, meter: Meter | None, progress: Progress, member: Member
) -> Any:
    """All of a model; or the part that a process of a group has, once it is proved that the parts are the whole."""
    from quire.worker.model.model import load
    from quire.worker.pages.arena import DTYPES

    dtype, device = DTYPES[options.weights_dtype.value], None if meter is None else meter.device
    if member.share.is_whole:
        model = load(folder, dtype, partial(progress, "load"))
        return model if device is None else model.to(device)
    from quire.worker.ranks.proof import prove_split
    from quire.worker.ranks.reading import read_configuration, read_share

    share, stage = member.share, stage_of(plan, member.share)
    proof = prove_split(read_configuration(folder), share.ranks, share.stages)
    layers = range(stage.first_layer, stage.first_layer + stage.layers)
    advance = partial(progress, "load")
    return read_share(folder, member, layers, dtype, proof.layer_outputs, advance=advance, device=device)


def place_model(plan: Plan, weights: Weights, options: RunOptions, meter: Meter | None = None) -> PlacedModel:
    """The model on pages of its own: on the meter's device, or without one on the CPU. A share of a model lies on the
    pages of its stage."""
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
