"""A GGUF file → a folder that Quire reads: weights, configuration, tokenizer, chat template.

Quantised weights keep their bits, in the form of `worker/weights/packed.py`; the others stay floats of the same width.
Every number is exactly what it means in the file. The second start maps the folder from disk.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError
from quire.fetch.folder import Progress, cache_folder, is_whole, remember, replaced, seal
from quire.text.gguf import ends_of, require_known, tokenizer_config, tokenizer_of
from quire.worker.weights.gguf import GgufFile, config_of, open_gguf
from quire.worker.weights.gguf_parts import open_parts, parts_of
from quire.worker.weights.write import write_checkpoint

CONVERSION = 4
"""Part of every manifest: raise it when the same file would become another folder."""


def convert_gguf(file: GgufFile, folder: Path, progress: Progress) -> None:
    """Fills an empty folder."""
    config = file.config()
    _require_rows(file, config["vocab_size"])
    tokenizer_of(file.fields).save(str(folder / "tokenizer.json"))
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokens["eos_token_id"] = ends_of(file.fields)
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", tokenizer_config(file.fields))
    _write(folder / "generation_config.json", tokens)
    write_checkpoint(
        folder / "model.safetensors",
        file.parameters(),
        file.read(),
        lambda done, total: progress("convert", done, total),
    )


def configuration_of(path: Path, is_whole: bool = True) -> dict[str, Any]:
    """The config.json that a GGUF file will have. Refuses what could not be converted, its tokenizer included, from
    headers alone. `is_whole`: the files are not only beginnings."""
    facts = open_parts(path, is_whole=is_whole).facts()
    require_known(facts.fields)
    return config_of(facts)


def folder_of_gguf(path: Path, progress: Progress, folder: Path | None = None) -> Path:
    """The folder of a GGUF file, converted at the first call."""
    source = _source(path)
    folder = folder or cache_folder() / name_of_gguf(path)
    if not is_whole(folder, source):
        file = open_gguf(path)
        try:
            with replaced(folder) as fresh:
                convert_gguf(file, fresh, progress)
                seal(fresh, source, progress)
        except OSError as error:
            raise ModelError(
                f"{path.name} cannot be converted into {folder}: {error.strerror or error}; free space there, or set "
                "QUIRE_CACHE to another folder"
            ) from None
    remember(folder)
    return folder


def name_of_gguf(path: Path) -> str:
    """The name of its folder, from the path, size and time of each of its files."""
    return f"{path.stem}-{hashlib.sha256(json.dumps(_source(path)).encode()).hexdigest()[:12]}"


def _source(path: Path) -> dict[str, Any]:
    first, *others = [file.stat() for file in parts_of(path)]
    return {
        "gguf": str(path.absolute()),  # not resolved: of a file in the hub's cache, the path has the commit
        "bytes": first.st_size,
        "time_ns": first.st_mtime_ns,
        "conversion": CONVERSION,
    } | ({"parts": [[part.st_size, part.st_mtime_ns] for part in others]} if others else {})


def _require_rows(file: GgufFile, rows: int) -> None:
    tokens = len(file.fields.get("tokenizer.ggml.tokens", ()))
    if tokens > rows:
        raise ModelError(
            f"{file.path.name} has {tokens:,} tokens, and {rows:,} rows in token_embd.weight: is it whole?"
        )


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
