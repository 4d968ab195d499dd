"""Which weights a checkpoint has: a digest of every byte, for engines that exchange what they computed.

    file ──▶ pieces ──threads──▶ SHA-256 of each ──in order──▶ one SHA-256

An engine whose records stay in its process needs no digest: no other weights ever use them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quire.core.units import GIB, MIB, format_bytes
from quire.fetch.folder import Progress, in_silence
from quire.fetch.hub_names import revision_of
from quire.options.run import RunOptions

PIECE_BYTES = 16 * MIB
MOST_THREADS = 8
LONG_BYTES = 2 * GIB
"""From this size on, if no progress is shown, a log line says why the start takes longer."""
SAMPLES, SAMPLE_BYTES = 16, 4096
"""Of each file, for a digest that takes no time."""
WEIGHT_FILES = ("*.safetensors", "*.gguf", "*.bin", "config.json")
_LOG = logging.getLogger("quire.tiers")


def model_identity(folder: Path, options: RunOptions, scales: str, progress: Progress = in_silence) -> str:
    """Identifies what computes the records: the weights, if records leave the process, their data type, and the scales
    of keys and values in 8 bits."""
    checkpoints = [own for own in (folder, options.draft_path) if own is not None and options.tiers.is_shared]
    return "".join(weights_identity(own, progress) for own in checkpoints) + options.weights_dtype.value + scales


def weights_identity(folder: Path, progress: Progress = in_silence) -> str:
    """A digest over names, sizes and all bytes of a checkpoint's files, and over the commit of a model of the hub."""
    files = sorted({path for pattern in WEIGHT_FILES for path in folder.glob(pattern)})
    sizes = {path: path.stat().st_size for path in files}
    total, done = sum(sizes.values()), 0
    if total >= LONG_BYTES and progress is in_silence:
        _LOG.warning("tiers: %s of weights are digested: records of others are never taken", format_bytes(total))
    digest = hashlib.sha256(json.dumps([[path.name, size] for path, size in sizes.items()]).encode())
    digest.update(revision_of(folder).encode())
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        for piece_digest, size in threads.map(_digest, *zip(*_pieces(sizes), strict=True)) if total else ():
            digest.update(piece_digest)
            done += size
            progress("digest", done, total)
    return digest.hexdigest()


def weights_sample(folder: Path) -> str:
    """Tells apart the checkpoints of ranks that start together: a digest over names, sizes and some bytes all through
    each file. Unlike `weights_identity` it reads hardly anything."""
    digest = hashlib.sha256(revision_of(folder).encode())
    for path in sorted({path for pattern in WEIGHT_FILES for path in folder.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for place in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * place // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _pieces(sizes: dict[Path, int]) -> Iterator[tuple[Path, int]]:
    """Each piece as (file, offset)."""
    for path, size in sizes.items():
        for begin in range(0, size, PIECE_BYTES):
            yield path, begin


def _digest(path: Path, begin: int) -> tuple[bytes, int]:
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(PIECE_BYTES)
    return hashlib.sha256(data).digest(), len(data)
