"""A secret of tiers: records prove that a holder wrote them, and their names cannot be computed without it."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from quire.build.tiers import stores_of
from quire.check.connectors import check_connector
from quire.core.connector import Connector, Forgets
from quire.core.errors import InputError
from quire.movers.disk import SUFFIX, DiskFolder
from quire.movers.frame import Header, decode, header_bytes, header_of, is_as_written, layout_digest
from quire.movers.hidden import hidden
from quire.options.peer import Peer, Role
from quire.options.tiers import Tiers
from scenes_of_tiers import LAYOUT

SECRET, OTHER_SECRET = b"s" * 16, b"t" * 16
NAME, OTHER_NAME = (b"u" + b"scope--1" + bytes([i]) * 24 for i in range(2))
DATA = bytes(range(250)) * 4


def parts(data: bytes = DATA) -> list[memoryview]:
    return [memoryview(data)[:600], memoryview(data)[600:]]


def store(folder: Path, secret: bytes = b"") -> Connector:
    made = hidden(DiskFolder(folder, 1 << 20, secret), secret)
    made.register(LAYOUT)
    return made


def read(connector: Connector, name: bytes = NAME) -> bytes | None:
    back = bytearray(len(DATA))
    return bytes(back) if connector.read(name, [memoryview(back)[:600], memoryview(back)[600:]]) else None


def file_in(folder: Path) -> Path:
    (found,) = folder.rglob(f"*{SUFFIX}")
    return found


@pytest.mark.golden
def test_without_a_secret_a_record_is_what_it_always_was(tmp_path: Path) -> None:
    """Its file has its own name, and a SHA-256 of the data alone."""
    store(tmp_path).write(NAME, parts())
    assert file_in(tmp_path).name == f"{NAME.hex()}{SUFFIX}"
    head = b"QUIREREC" + layout_digest(LAYOUT) + (33).to_bytes(2, "little") + (1000).to_bytes(8, "little")
    assert file_in(tmp_path).read_bytes() == head + hashlib.sha256(DATA).digest() + NAME + DATA


@pytest.mark.story
def test_a_record_of_a_writer_without_the_secret_is_dropped(tmp_path: Path) -> None:
    """Whoever can write to the folder, and knows everything but the secret, decides nothing that a model reads."""
    store(tmp_path, SECRET).write(NAME, parts())
    file = file_in(tmp_path)
    header = decode(file.read_bytes()[: header_bytes(NAME)])
    assert header is not None
    forged = bytes(len(DATA))
    for secret in (b"", OTHER_SECRET):
        file.write_bytes(header_of(LAYOUT, header.name, parts(forged), secret).encode() + forged)
        assert read(store(tmp_path, SECRET)) is None
        assert not file.exists()


def test_a_record_cannot_pass_for_another_one() -> None:
    """The HMAC covers name, layout and length too, not only the data; without a secret damage alone is found."""
    header = header_of(LAYOUT, NAME, parts(), SECRET)
    assert is_as_written(header, parts(), SECRET)
    others: list[Header] = [
        replace(header, name=OTHER_NAME),
        replace(header, layout=bytes(32)),
        replace(header, data_bytes=999),
    ]
    assert not any(is_as_written(other, parts(), SECRET) for other in others)
    assert is_as_written(replace(header_of(LAYOUT, NAME, parts()), name=OTHER_NAME), parts())


def test_holders_of_the_secret_share_records_and_others_find_none(tmp_path: Path) -> None:
    store(tmp_path, SECRET).write(NAME, parts())
    assert read(store(tmp_path, SECRET)) == DATA
    for secret in (b"", OTHER_SECRET):
        assert store(tmp_path, secret).has([NAME]) == [False]


@pytest.mark.story
def test_names_outside_reveal_neither_prompt_nor_scope(tmp_path: Path) -> None:
    """They are the same for holders of the secret, and a scope can be dropped all the same."""
    connector = store(tmp_path, SECRET)
    other_scope = b"u" + b"scope--2" + bytes(24)
    for name in (NAME, OTHER_NAME, other_scope):
        connector.write(name, parts())
    outside = b"".join(path.name.encode() + path.read_bytes() for path in tmp_path.rglob(f"*{SUFFIX}"))
    for part in (NAME[1:9], NAME[9:], OTHER_NAME[9:], NAME[1:9].hex().encode(), NAME[9:].hex().encode()):
        assert part not in outside
    assert isinstance(connector, Forgets)
    connector.forget(b"scope--1")
    assert connector.has([NAME, OTHER_NAME, other_scope]) == [False, False, True]
    connector.forget(b"")
    assert connector.has([other_scope]) == [False]


def test_a_store_under_hidden_names_conforms(tmp_path: Path) -> None:
    found = list(check_connector(lambda: hidden(DiskFolder(tmp_path, 1 << 30, SECRET), SECRET), LAYOUT))
    assert found
    assert not [problem for _, problem in found if problem]


def test_every_store_gets_the_secret_but_one_that_only_brings_records(tmp_path: Path) -> None:
    class Bringing(DiskFolder):
        brings_only = True

    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    own, bringing = DiskFolder(tmp_path / "own", 1 << 20), Bringing(tmp_path / "brings", 1 << 20)
    tiers = Tiers(disk=tmp_path / "disk", disk_bytes=1 << 20, connectors=(own, bringing), secret=file)
    disk, third, last = stores_of(tiers)
    assert last is bringing
    for connector, folder in ((disk, "disk"), (third, "own")):
        connector.register(LAYOUT)
        connector.write(NAME, parts())
        assert file_in(tmp_path / folder).name != f"{NAME.hex()}{SUFFIX}"
    assert read(store(tmp_path / "disk", SECRET)) == DATA


def test_a_secret_is_long_enough_and_ones_that_everybody_can_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    with pytest.raises(InputError, match=r"cannot read --tier-secret .*: No such file"):
        Tiers(secret=file).read_secret()
    file.write_text("short\n")
    with pytest.raises(InputError, match="has 5 bytes: give at least 16 random ones"):
        Tiers(secret=file).read_secret()
    file.write_bytes(SECRET)
    with caplog.at_level(logging.WARNING, "quire.tiers"):
        file.chmod(0o600)
        assert Tiers(secret=file).read_secret() == SECRET
        assert not caplog.records
        file.chmod(0o644)
        assert Tiers(secret=file).read_secret() == SECRET
        assert Peer(role=Role.DECODE, host="h", port=1, secret=file).read_secret() == SECRET
    assert [
        record.getMessage().count("can be read by every user (mode 644): chmod 600 it") for record in caplog.records
    ] == [1, 1]
    assert "--peer-secret" in caplog.records[-1].getMessage()
    assert Tiers().read_secret() == b""
