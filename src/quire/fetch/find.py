"""From what someone names to a folder with a model in it."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import InputError
from quire.fetch.folder import Progress, in_silence


def find_folder(model: str | Path | None, progress: Progress = in_silence) -> Path:
    """A checkpoint folder itself; a GGUF file, converted once into the cache folder; None: the default model."""
    if model is None:
        from quire.fetch.default import fetch_default

        return fetch_default(progress)
    path = Path(model)
    if path.is_file() and path.suffix.lower() == ".gguf":
        from quire.fetch.convert import folder_of_gguf

        return folder_of_gguf(path, progress)
    if not path.is_dir():
        raise InputError(
            f"{model}: there is no such folder or GGUF file; give a folder with config.json, a file *.gguf, "
            "or none for the default model"
        )
    return path
