"""From the name of a model to a folder that contains it.

name ──▶ source: a folder, a GGUF file or a model of the hub ──▶ configuration: enough for a plan
     ──▶ downloaded: its files are here ──▶ folder: a GGUF file is converted
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.core.errors import InputError
from quire.fetch.folder import Progress, cache_folder, in_silence, read_object
from quire.fetch.hub_names import read_hub_id
from quire.models.catalogue import find_entry
from quire.models.stored_bits import with_stored_bits

if TYPE_CHECKING:
    from quire.fetch.hub import HubModel

    Source = Path | HubModel

DEFAULT_MODEL = "smollm2-135m-instruct"
_LOG = logging.getLogger("quire.fetch")


def find_folder(model: str | Path | None, progress: Progress = in_silence) -> Path:
    """A checkpoint folder itself; a GGUF file, converted once into the cache folder; a model of the hub, downloaded;
    None or its name: the default."""
    return converted(downloaded(find_source(model, progress), progress), progress)


def find_source(model: str | Path | None, progress: Progress = in_silence) -> Source:
    """What is here comes first: a checkpoint folder or a GGUF file as it is. None, or its name: the default model,
    fetched once. `org/name@revision`: a model of the hub, of which only small files are read."""
    path = None if model is None else Path(model)
    if path is None or (str(model).lower() == DEFAULT_MODEL and not path.is_dir()):
        from quire.fetch.default import fetch_default

        return fetch_default(progress)
    hub_id = read_hub_id(model) if isinstance(model, str) else None
    if path.is_dir() or is_gguf(path):
        if hub_id is not None:
            _LOG.warning("%s is a folder here: it is used, the hub is not asked (%s@main asks it)", model, model)
        return path
    if hub_id is not None:
        from quire.fetch.hub import find_hub_model

        return find_hub_model(hub_id)
    raise InputError(
        f"{model}: there is no such folder or GGUF file; {_next_step(str(model))}give a folder with config.json, "
        f"a file *.gguf, a hub id as org/name, or none for the default model, {DEFAULT_MODEL}"
    )


def _next_step(model: str) -> str:
    """For the name of a model whose weights are not here."""
    is_shape = "/" not in model and find_entry(model) is not None
    return "the catalogue has its shape for plans, not its weights; " if is_shape else ""


def is_of_hub(model: str) -> bool:
    """Whether a plan of this model needs the hub: neither a path nor the catalogue has its shape."""
    return read_hub_id(model) is not None and not Path(model).exists() and find_entry(model) is None


def downloaded(source: Source, progress: Progress = in_silence) -> Path:
    """A folder or a GGUF file whose contents are here."""
    if isinstance(source, Path):
        return source
    from quire.fetch.hub_download import complete

    return complete(source, progress)


def converted(source: Path, progress: Progress = in_silence, weights: str | None = None) -> Path:
    """A checkpoint's folder. A GGUF file is converted at the first call, and weights that are to be quantised
    (`--weights`) are; later calls find what that wrote."""
    if is_gguf(source):
        from quire.fetch.convert import folder_of_gguf

        source = folder_of_gguf(source, progress)
    if weights is None:
        return source
    from quire.fetch.quantise import folder_of_weights

    return folder_of_weights(source, weights, progress)


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and path.is_file()


def configuration(source: Source) -> tuple[str, dict[str, Any]]:
    """The model's name and its config.json: of a GGUF file as it will be, converted or not."""
    if not isinstance(source, Path):
        from quire.fetch.hub import hub_configuration

        return source.name, hub_configuration(source)
    if not is_gguf(source):
        return source.name, with_stored_bits(source, read_object(source / "config.json"))
    from quire.fetch.convert import configuration_of, name_of_gguf

    name = name_of_gguf(source)
    path = cache_folder() / name / "config.json"
    return name, read_object(path) if path.is_file() else configuration_of(source)
