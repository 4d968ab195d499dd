"""A checkpoint folder → one with its weights in few bits (`--weights`), written once into the cache folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from quire.core.errors import InputError, QuireError
from quire.fetch.folder import (
    MANIFEST,
    Progress,
    cache_folder,
    is_whole,
    read_object,
    remember,
    replaced,
    seal,
    source_of,
)
from quire.models.quantisation import refuse_twice, section_in
from quire.worker.model.quantise import quantise_folder
from quire.worker.weights.packed import Codes
from quire.worker.weights.safetensors import checkpoint_files

QUANTISATION = 1
"""Part of every manifest: raise it when the same checkpoint would become another folder."""
COPIED = ("*.json", "*.txt", "*.jinja", "*.model")
"""Tokenizer, chat template and configurations."""


def folder_of_weights(folder: Path, weights: str, progress: Progress) -> Path:
    """The folder of a checkpoint in few bits, written at the first call. Nothing half-written remains."""
    section = section_in(folder)
    if section is not None:
        refuse_twice(section, weights)
    source = _source(folder, weights)
    target = cache_folder() / f"{folder.name}-{weights}-{_digest(source)}"
    if not is_whole(target, source):
        try:
            with replaced(target) as fresh:
                _fill(folder, fresh, weights, progress)
                seal(fresh, source, progress)
            _remove_outdated(target)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise InputError(f"{folder.name} in {weights} cannot be written to {target.parent}: {reason}") from None
    remember(target)
    return target


def _remove_outdated(made: Path) -> None:
    """Others in the cache folder whose checkpoint is gone or has changed: no start would read them again."""
    for manifest in made.parent.glob(f"*/{MANIFEST}"):
        source = source_of(manifest.parent)
        if manifest.parent != made and "quantisation" in source and _is_outdated(source):
            shutil.rmtree(manifest.parent, ignore_errors=True)


def _is_outdated(source: dict[str, Any]) -> bool:
    try:
        return _source(Path(source["folder"]), source["weights"]) != source
    except (OSError, QuireError, KeyError, TypeError):
        return True


def _fill(folder: Path, fresh: Path, weights: str, progress: Progress) -> None:
    for path in sorted(path for pattern in COPIED for path in folder.glob(pattern)):
        if not path.name.endswith(".index.json"):
            shutil.copyfile(path, fresh / path.name)
    files = quantise_folder(folder, fresh, Codes(weights), lambda done, total: progress("quantise", done, total))
    size = sum(path.stat().st_size for path in fresh.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (fresh / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {**read_object(folder / "config.json"), "quantization_config": {"quant_method": "quire"}}
    (fresh / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def _source(folder: Path, weights: str) -> dict[str, Any]:
    files = [*checkpoint_files(folder), folder / "config.json"]
    stamps = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return {"folder": str(folder.absolute()), "files": stamps, "weights": weights, "quantisation": QUANTISATION}


def _digest(source: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(source).encode()).hexdigest()[:12]
