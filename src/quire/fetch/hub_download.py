"""Completes a model of the hub: downloads what the cache lacks, and compares every file with what the hub states.

A file is compared once: its size and time are noted then, and it is read again only if they change.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from quire.core.units import format_bytes
from quire.fetch.errors import HubError
from quire.fetch.folder import Progress, cache_folder
from quire.fetch.hub import HubModel, SilentBar, download
from quire.fetch.hub_errors import hub_errors
from quire.fetch.hub_files import HubFile

AT_ONCE = 4
"""Files that are downloaded, or compared, at the same time."""
PIECE_BYTES = 1 << 22


def complete(model: HubModel, progress: Progress) -> Path:
    """The folder of the checkpoint, or its GGUF file: complete, and as the hub states it."""
    missing = model.missing
    if missing and model.away:
        names = ", ".join(file.name for file in missing[:3]) + (" …" if len(missing) > 3 else "")
        count = f"{len(missing)} of {len(model.files)} files"
        raise HubError(f"the copy of {model.hub_id} in the cache lacks {count} ({names}), and {model.away}")
    if missing:
        _require_room(model, missing)
        with hub_errors(model.hub_id):
            _download_all(model, missing, progress)
    _compare(model, progress)
    return model.folder / model.gguf.name if model.gguf is not None else model.folder


def forget_compared(model: HubModel) -> None:
    """The next start reads every file, whatever its size and time."""
    _record(model).unlink(missing_ok=True)


def _require_room(model: HubModel, missing: Sequence[HubFile]) -> None:
    needed = sum(file.bytes or 0 for file in missing)
    place = next(folder for folder in (model.cache, *model.cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise HubError(
            f"{model.hub_id} needs {format_bytes(needed)} in {constants.HF_HUB_CACHE}, which has {format_bytes(free)} "
            f"free: free {format_bytes(needed - free)}, or set HF_HOME to a folder on another disk"
        )


def _download_all(model: HubModel, missing: Sequence[HubFile], progress: Progress) -> None:
    """An error or an interrupt ends the transfers in progress, too."""
    meter = _Meter(sum(file.bytes or 0 for file in missing), progress)
    # A GGUF file alone is asked for by revision, so that the cache knows the commit by that name without the hub, too.
    revision = model.hub_id.revision if model.gguf is not None else ""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = [threads.submit(download, model, file.name, revision, meter.bar()) for file in missing]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException:
            meter.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    if still := model.missing:
        raise HubError(f"{model.hub_id} got a new commit just now, {still[0].name} is of another one: try again")
    meter.finish()


class _Stopped(Exception):
    """Ends a transfer from within its progress bar."""


class _Meter:
    """Sums the bytes of several transfers."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done, self._is_stopped = 0, False
        self._lock = threading.Lock()

    def advance(self, count: float) -> None:
        if self._is_stopped:
            raise _Stopped
        with self._lock:
            self._done += int(count)
            if 0 < self._done < self._total:
                self._progress("download", self._done, self._total)

    def stop(self) -> None:
        self._is_stopped = True

    def finish(self) -> None:
        self._progress("download", self._total, self._total)

    def bar(self) -> type[Any]:
        """For the hub's client, which makes a bar of this class for each transfer."""
        advance = self.advance

        class Bar(SilentBar):
            def update(self, n: float | None = 1) -> None:
                advance(n or 0)

            def update_transfer(self, n: float | None = 1) -> None:
                """Bytes from the network, apart from those that are written: the latter are counted."""

            def set_transfer_postfix_str(self, *_arguments: Any, **_options: Any) -> None:
                """Goes with `update_transfer`."""

        return Bar


def _compare(model: HubModel, progress: Progress) -> None:
    """Raises if a file is not what the hub states. What is wrong is removed if it can be downloaded again."""
    known, stamps = _read(_record(model)), {file.name: _stamp(model.folder / file.name) for file in model.files}
    new = [file for file in model.files if known.get(file.name) != stamps[file.name]]
    total, done = sum(stamps[file.name][0] for file in new), 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for file, problem in zip(new, threads.map(lambda one: _problem(model, one), new), strict=True):
            if problem:
                raise HubError(f"{model.hub_id}: {file.name} {problem}{_removed(model, file)}")
            done += stamps[file.name][0]
            progress("verify", done, total)
    if new:
        _note(_record(model), stamps)


def _problem(model: HubModel, file: HubFile) -> str:
    path = model.folder / file.name
    size = path.stat().st_size
    if file.bytes is not None and size != file.bytes:
        return f"has {size:,} bytes, the hub states {file.bytes:,}"
    if not file.digest:
        return ""
    digest = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in _pieces(path):
        digest.update(piece)
    found = digest.hexdigest()
    return "" if found == file.digest else f"has the digest {found[:12]}…, the hub states {file.digest[:12]}…"


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _removed(model: HubModel, file: HubFile) -> str:
    path = model.folder / file.name
    if model.away:
        return f": delete {path.resolve()} and start with the hub"
    try:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    except OSError:
        return f": delete {path.resolve()} and start again"
    return ": it is removed, start again to download it once more"


def _record(model: HubModel) -> Path:
    """Where it is noted which files were compared. In Quire's own folder: the cache belongs to all clients."""
    return cache_folder() / "hub" / model.hub_id.cache_name / f"{model.commit}.json"


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _read(record: Path) -> dict[str, Any]:
    try:
        value = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _note(record: Path, stamps: dict[str, list[int]]) -> None:
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(_read(record) | stamps))
    except OSError:
        return  # a folder that cannot be written: files are read in full each time
