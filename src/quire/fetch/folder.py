"""A converted model on disk: a folder with a manifest that has the checksum of every file.

Files are written to a folder next to the final one and renamed when complete: no reader sees an incomplete model.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.core.errors import InputError

MANIFEST, STAMPS = "manifest.json", ".checked"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Progress = Callable[[str, int, int], None]
"""Called with a stage, what is done of it and its size, in bytes."""


def in_silence(_stage: str, _done: int, _total: int) -> None:
    """A progress callback that shows nothing."""


def cache_folder() -> Path:
    """`QUIRE_CACHE`, or the place where this platform keeps what can be fetched again."""
    if os.environ.get("QUIRE_CACHE"):
        return Path(os.environ["QUIRE_CACHE"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "quire" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/quire"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def keep_compiled() -> None:
    """Keeps what Triton and torch's compiler produce in the cache folder for the next start, unless the environment
    names another place, or other users can write to the folder: files there are executed without any check. To be
    called before either of them is used."""
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return  # both have default places
    is_own = not status.st_mode & OTHERS_WRITE and status.st_uid == os.getuid()
    if is_own and os.access(folder, os.W_OK):
        made = os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path(made) / "triton"))


def is_whole(folder: Path, source: dict[str, Any]) -> bool:
    """Whether every file is as the manifest says, and all came from `source`.

    Checksums are computed only if a file's size or time has changed since they were last verified.
    """
    manifest = _read(folder / MANIFEST)
    if manifest.get("source") != source or not manifest.get("files"):
        return False
    stamps = _read(folder / STAMPS)
    if stamps.get(MANIFEST) != _stamp(folder / MANIFEST):
        stamps = {}
    return all(
        (stamp := _stamp(folder / name)) is not None
        and stamp[0] == file["bytes"]
        and (stamps.get(name) == stamp or checksum(folder / name) == file["sha256"])
        for name, file in manifest["files"].items()
    )


def source_of(folder: Path) -> dict[str, Any]:
    """What a folder was made from, as its manifest says; empty: it says nothing."""
    found = _read(folder / MANIFEST).get("source")
    return found if isinstance(found, dict) else {}


def remember(folder: Path) -> None:
    """Notes that the files are verified as they are: the next check need not read them."""
    names = _read(folder / MANIFEST)["files"]
    stamps = {name: _stamp(folder / name) for name in (MANIFEST, *names)}
    if _read(folder / STAMPS) == stamps:
        return
    try:
        (folder / STAMPS).write_text(json.dumps(stamps))
    except OSError:
        return  # a folder that cannot be written is read in full each time


def forget(folder: Path) -> None:
    """The next check reads the files, whatever their sizes and times."""
    (folder / STAMPS).unlink(missing_ok=True)


def seal(folder: Path, source: dict[str, Any], progress: Progress) -> None:
    """Writes the manifest of what is there."""
    files = sorted(path for path in folder.iterdir() if path.name not in (MANIFEST, STAMPS))
    total, done = sum(path.stat().st_size for path in files), 0
    entries: dict[str, Any] = {}
    for path in files:
        size = path.stat().st_size
        entries[path.name] = {"bytes": size, "sha256": checksum(path)}
        done += size
        progress("check", done, total)
    (folder / MANIFEST).write_text(json.dumps({"source": source, "files": entries}, indent=1) + "\n")
    remember(folder)


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """An empty folder that replaces `folder` at the end, unless an exception was raised."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    here = f".{folder.name}-{platform.node()}-"
    _remove_abandoned(folder.parent, here)
    with tempfile.TemporaryDirectory(prefix=f"{here}{os.getpid()}-", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        yield fresh
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """What a process on this machine left when it was killed."""
    for path in parent.glob(f"{glob.escape(prefix)}*"):
        number = path.name.removeprefix(prefix).partition("-")[0]
        if number.isdecimal() and os.name == "posix" and not _is_running(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_object(path: Path) -> dict[str, Any]:
    """A configuration."""
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is not an object of fields: is it a model's configuration?")
    return config
