"""Loads the weights of a checkpoint folder into transformers' model, completely or not at all, with progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from quire.core.errors import ModelError
from quire.worker.weights.safetensors import checkpoint_files
from quire.worker.weights.write import Advance

NAMED = 3
"""Parameters named in a refusal; the others are counted."""


def load_checkpoint(folder: Path, dtype: torch.dtype, attention: str, advance: Advance | None = None) -> Any:
    """transformers reads and converts the tensors. Parameters that it would initialise randomly are refused."""
    model, missing = read_model(folder, dtype, attention, advance)
    require_all(folder, "has no weights for", sorted(missing))
    return model


def read_model(
    folder: Path, dtype: torch.dtype, attention: str, advance: Advance | None, config: Any = None
) -> tuple[Any, set[str]]:
    """A model, and which parameters the checkpoint lacks. `config`: instead of the folder's."""
    size = sum(file.stat().st_size for file in checkpoint_files(folder))
    options: dict[str, Any] = {
        "attn_implementation": attention,
        "dtype": dtype,
        "use_safetensors": True,
        "trust_remote_code": False,
        "ignore_mismatched_sizes": True,
    } | ({} if config is None else {"config": config})
    try:
        with _report_progress(size, advance):
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"the weights of {folder} cannot be read: {' '.join(str(error).split())}") from None
    model, found = loaded
    require_all(folder, "has weights of another shape for", sorted(str(key[0]) for key in found["mismatched_keys"]))
    return model, set(found["missing_keys"])


def require_all(folder: Path, problem: str, names: list[str]) -> None:
    if names:
        others = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
        raise ModelError(f"{folder} {problem} {', '.join(names[:NAMED])}{others}: is the checkpoint whole?")


@contextmanager
def _report_progress(size: int, advance: Advance | None) -> Iterator[None]:
    """Silences transformers' own bars and warnings, and reports the progress of its loop over tensors."""

    def bar(factory: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if advance and options.get("desc") == "Loading weights":
            return _count(arguments[0], size, advance)
        return factory(*arguments, **{**options, "disable": True})

    logger: Any = logging
    verbosity, hook = logger.get_verbosity(), logger.set_tqdm_hook(bar)
    logger.set_verbosity_error()
    try:
        yield
    finally:
        logger.set_verbosity(verbosity)
        logger.set_tqdm_hook(hook)


def _count(tensors: Collection[Any], size: int, advance: Advance) -> Iterator[Any]:
    """Reports bytes, as if tensors were equally large."""
    for done, tensor in enumerate(tensors, 1):
        yield tensor
        advance(size * done // len(tensors), size)
