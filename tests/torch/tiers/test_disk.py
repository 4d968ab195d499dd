"""Records in a folder: whole or not at all, of this layout or not at all, whatever happens to the files."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import IO

import pytest

from quire.core.connector import Layout, TierFailed
from quire.movers.disk import LOOKS_PER_QUOTA, SUFFIX, WRITING, DiskFolder
from quire.movers.disk import _opened as opened

LAYOUT = Layout("a" * 64, 16, 1000, 100, "[]")
OTHER = Layout("b" * 64, 16, 1000, 100, "[]")
NAME, OTHER_NAME = b"u" + bytes(32), b"u" + bytes([1]) * 32
DATA = bytes(range(250)) * 4


def folder(path: Path, quota: int = 1 << 20, layout: Layout = LAYOUT) -> DiskFolder:
    disk = DiskFolder(path, quota)
    disk.register(layout)
    return disk


def write(disk: DiskFolder, name: bytes = NAME, data: bytes = DATA) -> None:
    disk.write(name, [memoryview(data[:600]), memoryview(data[600:])])


def read(disk: DiskFolder, name: bytes = NAME, size: int = len(DATA)) -> bytes | None:
    first, second = bytearray(600), bytearray(size - 600)
    return bytes(first + second) if disk.read(name, [memoryview(first), memoryview(second)]) else None


def file_of(path: Path) -> Path:
    (found,) = path.rglob(f"*{SUFFIX}")
    return found


def test_what_is_written_comes_back_also_after_a_restart(tmp_path: Path) -> None:
    disk = folder(tmp_path)
    assert disk.has([NAME, OTHER_NAME]) == [False, False]
    write(disk)
    assert disk.has([NAME, OTHER_NAME]) == [True, False]
    assert read(disk) == DATA
    assert read(disk, OTHER_NAME) is None
    again = folder(tmp_path)
    assert again.has([NAME]) == [True]
    assert read(again) == DATA


@pytest.mark.story
def test_folders_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask: records are computed from the prompts of all tenants. A folder that exists keeps its mode."""
    old = os.umask(0)
    try:
        write(folder(tmp_path / "new"))
        (tmp_path / "there").mkdir(0o750)
        write(folder(tmp_path / "there"))
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    assert modes == {LAYOUT.fingerprint[:32]: 0o700, f"{NAME.hex()}{SUFFIX}": 0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750


def test_an_engine_finds_what_another_one_has_written_since(tmp_path: Path) -> None:
    one, other = folder(tmp_path), folder(tmp_path)
    write(one)
    assert other.has([NAME]) == [True]
    one.drop(NAME)
    assert read(other) is None
    assert other.has([NAME]) == [False]


@pytest.mark.parametrize("kept_bytes", [0, 5, 90, 115, 400, len(DATA) + 114])
def test_a_file_that_was_cut_short_is_dropped(tmp_path: Path, kept_bytes: int) -> None:
    disk = folder(tmp_path)
    write(disk)
    os.truncate(file_of(tmp_path), kept_bytes)
    assert read(folder(tmp_path)) is None
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_a_single_wrong_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    """In the header or in the data, one after another."""
    disk = folder(tmp_path)
    write(disk)
    whole = file_of(tmp_path).read_bytes()
    for place in [*range(115), *range(115, len(whole), 97)]:
        spoilt = bytearray(whole)
        spoilt[place] ^= 0x10
        (tmp_path / LAYOUT.fingerprint[:32] / (NAME.hex() + SUFFIX)).write_bytes(spoilt)
        assert read(disk) is None, f"byte {place}"


def test_records_of_another_layout_or_name_are_not_taken_for_ours(tmp_path: Path) -> None:
    """Also if somebody puts their files in our place."""
    write(folder(tmp_path, layout=OTHER))
    disk = folder(tmp_path)
    assert disk.has([NAME]) == [False]
    ours = tmp_path / LAYOUT.fingerprint[:32]
    foreign = file_of(tmp_path).read_bytes()
    (ours / (NAME.hex() + SUFFIX)).write_bytes(foreign)
    assert read(disk) is None
    write(disk)
    (ours / (OTHER_NAME.hex() + SUFFIX)).write_bytes((ours / (NAME.hex() + SUFFIX)).read_bytes())
    assert read(disk, OTHER_NAME) is None
    assert read(disk) == DATA
    assert read(disk, size=len(DATA) - 1) is None


def test_the_quota_is_kept_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Room for three: the first is read again before the fourth comes, also by the count of a new start."""
    names = [b"u" + bytes([place]) * 32 for place in range(5)]
    disk = folder(tmp_path, quota=3 * 1200)
    for name in names[:3]:
        write(disk, name)
        time.sleep(0.02)  # times of files have steps of milliseconds
    assert read(disk, names[0]) == DATA
    write(disk, names[3])
    assert disk.has(names) == [True, False, True, True, False]
    again = folder(tmp_path, quota=3 * 1200)
    write(again, names[4])
    assert again.has(names) == [True, False, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 3 * 1200
    with pytest.raises(TierFailed, match="exceeds the quota"):
        write(folder(tmp_path, quota=1000))


@pytest.mark.story
def test_the_quota_counts_what_other_layouts_left_behind(tmp_path: Path) -> None:
    """Another model, or another version of Quire, has filled the folder: its oldest records go first."""
    names = [b"u" + bytes([place]) * 32 for place in range(4)]
    other = folder(tmp_path, quota=3 * 1200, layout=OTHER)
    for name in names[:3]:
        write(other, name)
        time.sleep(0.02)  # times of files have steps of milliseconds
    disk = folder(tmp_path, quota=3 * 1200)
    write(disk, names[3])
    assert disk.has(names) == [False, False, False, True]
    assert [read(folder(tmp_path, layout=OTHER), name) is not None for name in names] == [False, True, True, False]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 3 * 1200


@pytest.mark.story
def test_engines_that_share_a_folder_keep_one_quota(tmp_path: Path) -> None:
    """Each may exceed it by a sixteenth, which it wrote since it last looked what the others did."""
    quota, engines = 64 * 1200, 4
    disks = [folder(tmp_path, quota) for _ in range(engines)]
    for place in range(3 * 64):
        for number, disk in enumerate(disks):
            write(disk, b"u" + bytes([number]) * 16 + bytes([place]) * 16)
    used = sum(path.stat().st_size for path in tmp_path.rglob(f"*{SUFFIX}"))
    assert quota // 2 < used <= quota * (1 + engines / LOOKS_PER_QUOTA)


@pytest.mark.story
def test_what_a_writer_of_the_same_number_left_behind_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    """Engines of two containers have the same process number, and so has one that was killed and started again."""
    disk = folder(tmp_path)
    left = tmp_path / LAYOUT.fingerprint[:32] / f"{WRITING}{os.getpid()}-0"
    left.write_bytes(b"half")
    coming = opened(left.parent)
    again = folder(tmp_path)
    assert not left.exists()
    assert list(tmp_path.rglob(f"{WRITING}*")) == [Path(coming.name)]
    write(disk)
    assert read(again) == DATA
    coming.close()
    folder(tmp_path)
    assert not list(tmp_path.rglob(f"{WRITING}*"))


@pytest.mark.story
def test_a_file_that_somebody_takes_for_left_behind_before_it_is_locked_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, scans = fcntl.flock, [folder]

    def late(file: IO[bytes], how: int) -> None:
        if scans:
            scans.pop()(tmp_path)
        flock(file, how)

    disk = folder(tmp_path)
    monkeypatch.setattr(fcntl, "flock", late)
    write(disk)
    assert read(disk) == DATA


@pytest.mark.parametrize("scope", [b"", bytes(8)])
def test_what_is_forgotten_is_gone_for_every_engine_and_nothing_else_is(tmp_path: Path, scope: bytes) -> None:
    disk, other = folder(tmp_path), folder(tmp_path, layout=OTHER)
    for one in (disk, other):
        write(one)
        write(one, OTHER_NAME)
    late = folder(tmp_path)
    disk.forget(scope)
    assert disk.has([NAME, OTHER_NAME]) == [False, bool(scope)]
    assert [read(one) for one in (disk, late)] == [None, None]
    assert other.has([NAME, OTHER_NAME]) == [True, True]
    left = list((tmp_path / LAYOUT.fingerprint[:32]).iterdir())
    assert disk._used_bytes == sum(file.stat().st_size for file in left)


@pytest.mark.story
def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder(tmp_path))

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    disk = folder(tmp_path)
    assert disk.has([NAME]) == [True]
    assert read(disk) == DATA


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine" / f"notes{SUFFIX}"
    mine.parent.mkdir()
    mine.write_bytes(bytes(5000))
    disk = folder(tmp_path, quota=2000)
    write(disk)
    write(disk, OTHER_NAME)
    assert mine.exists()
    assert disk.has([NAME, OTHER_NAME]) == [False, True]


def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TierFailed, match="Not a directory"):
        folder(tmp_path / "file" / "below")
    disk = folder(tmp_path)
    (tmp_path / LAYOUT.fingerprint[:32]).rmdir()
    with pytest.raises(TierFailed, match="No such file"):
        write(disk)


def test_a_full_disk_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the write fails half way."""
    script = f"""
import resource, signal, sys
sys.path[:0] = {sys.path!r}
from test_disk import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
try:
    write(folder(Path({str(tmp_path)!r})))
except TierFailed as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "cannot write to" in said
    assert "File too large" in said
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


WRITER = """
import sys
sys.path[:0] = {path!r}
from quire.movers.disk import DiskFolder
from test_disk import LAYOUT, record
from pathlib import Path
disk = DiskFolder(Path({folder!r}), 1 << 22)
disk.register(LAYOUT)
print("ready", flush=True)
for number in range({begin}, 1 << 30):
    name, data = record(number % 40)
    disk.write(name, [memoryview(data)])
"""


def record(number: int) -> tuple[bytes, bytes]:
    return b"u" + bytes([number]) * 32, Random(number).randbytes(200_000)


@pytest.mark.parametrize("kills", [int(os.environ.get("QUIRE_KILLS", "6"))])
def test_a_writer_killed_at_random_moments_leaves_no_wrong_byte(tmp_path: Path, kills: int) -> None:
    """Whatever can be read afterwards is what was written, and what it left half written goes at the next start."""
    random, found = Random(kills), 0
    for kill in range(kills):
        script = WRITER.format(path=sys.path, folder=str(tmp_path), begin=7 * kill)
        writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(random.random() * 0.1)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        disk = folder(tmp_path, 1 << 22)
        assert not list(tmp_path.rglob(f"{WRITING}*"))
        for number in range(40):
            name, data = record(number)
            back = bytearray(len(data))
            if disk.has([name]) == [True]:
                assert disk.read(name, [memoryview(back)]), "a file in its place is whole"
                assert back == data
                found += 1
    assert found > 5 * kills
