"""From the name of a model to a folder that contains it.

name ──▶ source: a folder or a GGUF file ──▶ configuration: enough for a plan ──▶ folder: a GGUF file is converted
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from quire.core.errors import InputError
from quire.fetch.folder import Progress, cache_folder, in_silence
from quire.models.catalogue import find_entry

DEFAULT_MODEL = "smollm2-135m-instruct"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
"""As the hub of models writes names: OWNER/MODEL."""


def find_folder(model: str | Path | None, progress: Progress = in_silence) -> Path:
    """A checkpoint folder itself; a GGUF file, converted once into the cache folder; None or its name: the default."""
    return as_checkpoint(find_source(model, progress), progress)


def find_source(model: str | Path | None, progress: Progress = in_silence) -> Path:
    """A checkpoint folder or a GGUF file as it is; None, or its name: the default model, fetched once."""
    path = None if model is None else Path(model)
    if path is None or (str(model).lower() == DEFAULT_MODEL and not path.is_dir()):
        from quire.fetch.default import fetch_default

        return fetch_default(progress)
    if not path.is_dir() and not is_gguf(path):
        raise InputError(
            f"{model}: there is no such folder or GGUF file; {_next_step(str(model))}give a folder with config.json, "
            f"a file *.gguf, or none for the default model, {DEFAULT_MODEL}"
        )
    return path


def _next_step(model: str) -> str:
    """For the name of a model whose weights are not here."""
    if HUB_ID.match(model):
        return f"download it first (hf download {model} --local-dir {model.partition('/')[2]}) and give that folder; "
    is_shape = find_entry(model) is not None
    return "the catalogue has its shape for plans, not its weights: download those; " if is_shape else ""


def as_checkpoint(source: Path, progress: Progress = in_silence) -> Path:
    if not is_gguf(source):
        return source
    from quire.fetch.convert import folder_of_gguf

    return folder_of_gguf(source, progress)


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and path.is_file()


def configuration(source: Path) -> tuple[str, dict[str, Any]]:
    """The model's name and its config.json: of a GGUF file as it will be, converted or not."""
    if not is_gguf(source):
        return source.name, _read(source / "config.json")
    from quire.fetch.convert import name_of_gguf
    from quire.worker.weights.gguf import gguf_config

    name = name_of_gguf(source)
    path = cache_folder() / name / "config.json"
    return name, _read(path) if path.is_file() else gguf_config(source)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is not an object of fields: is it a model's configuration?")
    return config
