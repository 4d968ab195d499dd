"""One GGUF file → a folder that transformers and Quire read: weights, configuration, tokenizer, chat template.

Weights are kept as 32-bit floats: exactly what the quantised ones mean, mapped from disk without a conversion, and what
a CPU computes in. Half the bytes (bf16) would round each weight a second time and be widened again at every start.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from quire.fetch.folder import Progress, cache_folder, is_whole, remember, replaced, seal
from quire.text.gguf import tokenizer_config, tokenizer_of
from quire.worker.weights.gguf import GgufFile, open_gguf
from quire.worker.weights.write import write_checkpoint

CONVERSION = 2
"""Part of every manifest: raise it when the same file would become another folder."""


def convert_gguf(file: GgufFile, folder: Path, progress: Progress) -> None:
    """Fills an empty folder."""
    config, tokenizer = file.config(), tokenizer_config(file.fields)
    tokenizer_of(file.fields).save(str(folder / "tokenizer.json"))
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", tokenizer)
    _write(folder / "generation_config.json", tokens)
    write_checkpoint(
        folder / "model.safetensors",
        file.parameters(),
        file.read(),
        lambda done, total: progress("convert", done, total),
    )


def folder_of_gguf(path: Path, progress: Progress, folder: Path | None = None) -> Path:
    """The folder of a GGUF file, converted at the first call."""
    source = _source(path)
    folder = folder or cache_folder() / name_of_gguf(path)
    if not is_whole(folder, source):
        with replaced(folder) as fresh:
            convert_gguf(open_gguf(path), fresh, progress)
            seal(fresh, source, progress)
    remember(folder)
    return folder


def name_of_gguf(path: Path) -> str:
    """The name of its folder, from the file's path, size and time."""
    return f"{path.stem}-{hashlib.sha256(json.dumps(_source(path)).encode()).hexdigest()[:12]}"


def _source(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {
        "gguf": str(path.absolute()),  # not resolved: of a file in the hub's cache, the path has the commit
        "bytes": status.st_size,
        "time_ns": status.st_mtime_ns,
        "conversion": CONVERSION,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
