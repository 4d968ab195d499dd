"""The conformance kit passes what conforms, and names what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from quire.check.connectors import CHECKS, CHECKS_OF_FORGETTING, check_connector
from quire.cli.main import main
from quire.core.connector import Layout, TierFailed
from quire.core.errors import InputError
from quire.movers.disk import DiskFolder
from quire.movers.remote import RemoteStore
from quire.tiers.guarded import GuardedTier
from scenes_of_tiers import LAYOUT

DOCS = Path(__file__).parents[3] / "docs"


class Good:
    """The simplest that conforms: a dictionary that all of them share."""

    name = "good"
    kept: dict[str, bytes]

    def __init__(self, kept: dict[str, bytes]) -> None:
        self.kept = kept

    def register(self, layout: Layout) -> None:
        self.layout = layout.fingerprint

    def key(self, name: bytes) -> str:
        return self.layout + name.hex()

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [self.key(name) in self.kept for name in names]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self.kept[self.key(name)] = b"".join(parts)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        data, begin = self.kept.get(self.key(name)), 0
        if data is None or len(data) != sum(map(len, parts)):
            return False
        for part in parts:
            part[:] = data[begin : begin + len(part)]
            begin += len(part)
        return True

    def drop(self, name: bytes) -> None:
        self.kept.pop(self.key(name), None)

    def close(self) -> None: ...


class ForgetsLayout(Good):
    def key(self, name: bytes) -> str:
        return name.hex()


class FirstPartOnly(Good):
    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self.kept[self.key(name)] = bytes(parts[0]) + bytes(sum(map(len, parts[1:])))


class NeverDrops(Good):
    def drop(self, name: bytes) -> None: ...


class AnySize(Good):
    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        return self.key(name) in self.kept and (super().read(name, parts) or True)


class RaisesWhenAbsent(Good):
    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        return bool(self.kept[self.key(name)]) and super().read(name, parts)


class LosesOnRegister(Good):
    def register(self, layout: Layout) -> None:
        super().register(layout)
        self.kept.clear()


class KeepsTheMemory(Good):
    """It keeps where the bytes lay, not the bytes."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        super().__init__(kept)
        self.views: dict[str, Sequence[memoryview]] = {}

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self.views[self.key(name)] = parts

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        if views := self.views.get(self.key(name)):
            self.kept[self.key(name)] = b"".join(views)
        return super().read(name, parts)


class Bringer:
    """Only brings, and has nothing: writing and dropping are errors."""

    name, brings_only = "bringer", True

    def register(self, layout: Layout) -> None: ...

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [False] * len(names)

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        del name, parts
        raise TierFailed("it takes nothing")

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        del name, parts
        return False

    def drop(self, name: bytes) -> None:
        del name
        raise TierFailed("it is not yours to drop")

    def close(self) -> None: ...


class Boaster(Bringer):
    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        del name, parts
        return True


class Forgetful(Good):
    """Can tell whose records are whose."""

    def forget(self, scope: bytes) -> None:
        for key in [key for key in self.kept if self.is_of(key, scope)]:
            del self.kept[key]

    def is_of(self, key: str, scope: bytes) -> bool:
        return key.startswith(self.layout) and key.startswith(scope.hex(), len(self.layout) + 2)


class NeverForgets(Forgetful):
    def is_of(self, key: str, scope: bytes) -> bool:
        del key, scope
        return False


class ForgetsUnitsAlone(Forgetful):
    def is_of(self, key: str, scope: bytes) -> bool:
        return key.startswith((b"u" + scope).hex(), len(self.layout))


class ForgetsEverything(Forgetful):
    def is_of(self, key: str, scope: bytes) -> bool:
        del scope
        return key.startswith(self.layout)


class ForgetsNoEmptyScope(Forgetful):
    def is_of(self, key: str, scope: bytes) -> bool:
        return bool(scope) and super().is_of(key, scope)


class ForgetsForOthers(Forgetful):
    """Of whichever layout."""

    def is_of(self, key: str, scope: bytes) -> bool:
        return key.startswith(scope.hex(), len(self.layout) + 2)


class ForgetsForOthersAtLast(Forgetful):
    def is_of(self, key: str, scope: bytes) -> bool:
        return not scope or super().is_of(key, scope)


BAD: dict[str, Callable[[dict[str, bytes]], Good]] = {
    "records of another layout are not there": ForgetsLayout,
    "what is written comes back, whatever its size": FirstPartOnly,
    "what was dropped is gone": NeverDrops,
    "a record of another size is not there": AnySize,
    "what is not there is not there, and may be dropped": RaisesWhenAbsent,
    "connectors of one layout read the same bytes or none, also when registered again": LosesOnRegister,
}


def failures(make: Callable[[dict[str, bytes]], Good]) -> list[str]:
    kept: dict[str, bytes] = {}
    return [sentence for sentence, problem in check_connector(lambda: make(kept), LAYOUT) if problem]


def test_what_conforms_passes(tmp_path: Path) -> None:
    assert failures(Good) == failures(Forgetful) == []
    assert not [problem for _, problem in check_connector(lambda: DiskFolder(tmp_path, 1 << 26), LAYOUT) if problem]


@pytest.mark.parametrize("sentence", BAD)
def test_each_fault_is_named(sentence: str) -> None:
    assert sentence in failures(BAD[sentence])


@pytest.mark.story
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (NeverForgets, "has() finds what was forgotten"),
        (ForgetsUnitsAlone, "has() finds what was forgotten"),
        (ForgetsEverything, "forget() of one scope took a record of another"),
        (ForgetsForOthers, "forget() took a record of another layout"),
        (ForgetsNoEmptyScope, "forget() of the empty scope left a record"),
        (ForgetsForOthersAtLast, "forget() of the empty scope took a record of another layout"),
    ],
)
def test_a_connector_that_forgets_too_little_or_too_much_is_found_out(make: type[Forgetful], told: str) -> None:
    kept: dict[str, bytes] = {}
    problems = [problem for _, problem in check_connector(lambda: make(kept), LAYOUT) if problem]
    assert problems == [told]


@pytest.mark.story
def test_a_connector_that_takes_records_of_other_layouts_is_not_told_to_forget_everything() -> None:
    """What else lies in a store that somebody checks is not the kit's to lose."""
    kept = {"a" * 64 + "somebody's": b"treasure"}
    assert [problem for _, problem in check_connector(lambda: ForgetsForOthers(kept), LAYOUT) if problem]
    assert kept["a" * 64 + "somebody's"] == b"treasure"


@pytest.mark.story
def test_a_connector_that_keeps_the_memory_instead_of_its_bytes_is_found_out() -> None:
    """The blocks hold another record soon: the kit and the guard overwrite what they wrote before they read."""
    assert "what is written comes back, whatever its size" in failures(KeepsTheMemory)
    tier = GuardedTier(KeepsTheMemory({}), LAYOUT, lambda: 0.0)
    tier.mend()
    assert not tier.can_write
    assert "does not come back" in tier.reason


@pytest.mark.story
def test_a_connector_that_only_brings_conforms_without_being_written_to() -> None:
    assert not [problem for _, problem in check_connector(Bringer, LAYOUT) if problem]
    assert [problem for _, problem in check_connector(Boaster, LAYOUT) if problem]


def refuse() -> None:
    raise RuntimeError("no licence")


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("json:loads", "TypeError"),
        (f"{__name__}:refuse", "no licence"),
        ("collections:OrderedDict", "has no name, register"),
    ],
)
def test_whatever_makes_no_connector_is_told(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-connector", name]) == 2
    told = capsys.readouterr().err
    assert f"{name} makes no connector" in told
    assert said in told


@pytest.mark.story
@pytest.mark.parametrize("url", ["redis://h:notaport", "redis://:pass/word@h:1", "redis://[::1"])
def test_an_address_that_cannot_be_read_is_an_error_of_input_and_tells_no_password(url: str) -> None:
    with pytest.raises(InputError, match="write redis://") as told:
        RemoteStore(url)
    assert "pass/" not in str(told.value)


def test_the_example_of_the_docs_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECORDS", str(tmp_path / "records.sqlite"))
    monkeypatch.chdir(DOCS)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(DOCS))])
    assert main(["check-connector", "example_connector"]) == 0
    assert capsys.readouterr().out.count("ok ") == len(CHECKS | CHECKS_OF_FORGETTING)
    assert main(["check-connector", "no_such_module"]) == 2
    assert "makes no connector" in capsys.readouterr().err
    sys.modules.pop("example_connector", None)
