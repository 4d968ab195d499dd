"""Records as files in a folder, within a quota: they survive restarts, and damaged or foreign files are dropped.

    DIR/<layout>/75a1….record         renamed into place when complete; the most recently used has the newest time
    DIR/<layout>/writing-<random>     being written, locked by its writer; an engine that finds it unlocked removes it

Several engines may share a folder, also from several containers. A file that one of them removed does not exist for the
others. The quota includes the files of all layouts: files of another model, or of another version of Quire, are evicted
by age like all others. Each engine scans the folder for files of other engines whenever it has itself written a
sixteenth of the quota: by that much, for each engine, a folder may exceed the quota.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from quire.core.connector import Layout, TierFailed
from quire.core.units import format_bytes
from quire.movers.frame import decode, flaw, header_bytes, header_of, is_as_written

SUFFIX, WRITING = ".record", "writing-"
LOOKS_PER_QUOTA = 16
LAYOUT_NAME = re.compile("[0-9a-f]{32}")
_LOG = logging.getLogger("quire.tiers")


class DiskFolder:
    def __init__(self, folder: Path, quota_bytes: int | None = None, secret: bytes = b"") -> None:
        """`quota_bytes` None: nine tenths of the free space when it is first used."""
        self.name = "disk"
        self._root, self._quota, self._secret = folder, quota_bytes, secret
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """By layout and file name, the least recently used first."""
        self._used_bytes = self._written_bytes = 0
        """Bytes of all engines, and bytes that this one has written since its last scan."""
        self._lock = threading.Lock()

    # ── the connector ─────────────────────────────────────────────────────

    def register(self, layout: Layout) -> None:
        self._layout, self._folder = layout, self._root / layout.fingerprint[:32]
        try:
            _make_private(self._root, self._folder)
            self._look()
            if self._quota is None:
                usage = os.statvfs(self._folder)
                self._quota = self._used_bytes + usage.f_bavail * usage.f_frsize * 9 // 10
        except OSError as error:
            raise TierFailed(f"cannot use the folder {self._folder}: {error.strerror}") from error

    def has(self, names: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [self._is_there(self._file(name)) for name in names]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        header = header_of(self._layout, name, parts, self._secret)
        size = header_bytes(name) + header.data_bytes
        try:
            self._make_room(size)
            with _opened(self._folder) as file:
                self._fill(file, [header.encode(), *parts], self._root / self._file(name))
        except OSError as error:
            raise TierFailed(f"cannot write to {self._folder}: {error.strerror}") from error
        with self._lock:
            self._note(self._file(name), size)
            self._written_bytes += size

    @staticmethod
    def _fill(file: BinaryIO, parts: Sequence[bytes | memoryview], path: Path) -> None:
        """Writes a file: renamed into place when complete, removed otherwise."""
        try:
            for part in parts:
                file.write(part)
            file.flush()
            Path(file.name).rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(file.name).unlink(missing_ok=True)
            raise

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        path = self._root / self._file(name)
        try:
            with path.open("rb") as file:
                header = decode(file.read(header_bytes(name)))
                problem = flaw(header, self._layout, name, sum(map(len, parts)))
                read_bytes = 0 if problem else sum(file.readinto(part) for part in parts)
            with contextlib.suppress(OSError):  # the folder may be read-only; the order is kept in memory all the same
                os.utime(path)
        except FileNotFoundError:
            self._forget(self._file(name))
            return False
        except OSError as error:
            raise TierFailed(f"cannot read {path}: {error.strerror}") from error
        is_whole = header is not None and read_bytes == header.data_bytes
        if not problem and not (header and is_whole and is_as_written(header, parts, self._secret)):
            problem = "its bytes are not those that were written"
        if problem:
            _LOG.warning("disk: %s is dropped: %s", path.name, problem)
            self.drop(name)
            return False
        with self._lock:
            if self._file(name) in self._sizes:
                self._sizes.move_to_end(self._file(name))
        return True

    def drop(self, name: bytes) -> None:
        with contextlib.suppress(OSError):
            (self._root / self._file(name)).unlink(missing_ok=True)
        self._forget(self._file(name))

    def forget(self, scope: bytes) -> None:
        """Also drops files that other engines have written."""
        try:
            for entry in os.scandir(self._folder):
                if entry.name.endswith(SUFFIX) and entry.name.startswith(scope.hex(), 2):
                    Path(entry.path).unlink(missing_ok=True)
                    self._forget(f"{self._folder.name}/{entry.name}")
        except OSError as error:
            raise TierFailed(f"cannot remove files from {self._folder}: {error.strerror}") from error

    def close(self) -> None:
        """Nothing is open between calls."""

    # ── books ─────────────────────────────────────────────────────────────

    def _look(self) -> None:
        found = self._scan()
        with self._lock:
            self._sizes, self._used_bytes, self._written_bytes = found, sum(found.values()), 0

    def _scan(self) -> OrderedDict[str, int]:
        """The files in the folder, the least recently used first; files of writers that have ended are removed."""
        with self._lock:  # file times have steps of milliseconds: within one, the order in memory counts
            places = {file: place for place, file in enumerate(self._sizes)}
        found: list[tuple[int, str, int]] = []
        for folder in os.scandir(self._root):
            with contextlib.suppress(OSError):  # a folder of another user, or not a folder
                if LAYOUT_NAME.fullmatch(folder.name):
                    found += _records_in(folder)
        found.sort(key=lambda one: (one[0], places.get(one[1], -1)))
        return OrderedDict((file, size) for _, file, size in found)

    def _file(self, name: bytes) -> str:
        return f"{self._folder.name}/{name.hex()}{SUFFIX}"

    def _is_there(self, file: str) -> bool:
        """Whether a file exists, also if another engine has written it since."""
        if file not in self._sizes:
            try:
                self._note(file, (self._root / file).stat().st_size)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise TierFailed(f"cannot look into {self._folder}: {error.strerror}") from error
        return True

    def _note(self, file: str, size: int) -> None:
        self._used_bytes += size - self._sizes.pop(file, 0)
        self._sizes[file] = size

    def _forget(self, file: str) -> None:
        with self._lock:
            self._used_bytes -= self._sizes.pop(file, 0)

    def _make_room(self, size: int) -> None:
        assert self._quota is not None, "registered"
        if size > self._quota:
            raise TierFailed(
                f"a record of {format_bytes(size)} exceeds the quota of {format_bytes(self._quota)}: give --disk more"
            )
        if self._written_bytes + size > self._quota // LOOKS_PER_QUOTA:
            self._look()
        with self._lock:
            while self._used_bytes + size > self._quota and self._sizes:
                file, old = self._sizes.popitem(last=False)
                self._used_bytes -= old
                with contextlib.suppress(OSError):
                    (self._root / file).unlink(missing_ok=True)


def _make_private(root: Path, folder: Path) -> None:
    """Folders that are made here are their owner's alone: records are computed from prompts. One that exists keeps the
    mode that its owner chose."""
    if not root.exists():
        root.mkdir(0o700, parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _records_in(folder: os.DirEntry[str]) -> list[tuple[int, str, int]]:
    """(when it was used, file, bytes)."""
    found = []
    for entry in os.scandir(folder):
        if entry.name.startswith(WRITING):
            _remove_if_orphan(Path(entry.path))
        elif entry.name.endswith(SUFFIX):
            with contextlib.suppress(OSError):
                found.append((entry.stat().st_mtime_ns, f"{folder.name}/{entry.name}", entry.stat().st_size))
    return found


def _opened(folder: Path) -> BinaryIO:
    """A new file, locked before another engine can take it for an orphan. Not locked if files cannot be locked here."""
    while True:
        file = open(folder / f"{WRITING}{secrets.token_hex(16)}", "xb", opener=_private)  # noqa: SIM115
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another engine removed it first


def _remove_if_orphan(path: Path) -> None:
    """Removes a file whose lock is free: its writer holds the lock until it ends, however it ends."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
