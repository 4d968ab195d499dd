"""The conformance kit passes what conforms, and names what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from quire.check.connectors import CHECKS, check_connector
from quire.cli.main import main
from quire.core.connector import Layout
from quire.movers.disk import DiskFolder
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
    assert failures(Good) == []
    assert not [problem for _, problem in check_connector(lambda: DiskFolder(tmp_path, 1 << 26), LAYOUT) if problem]


@pytest.mark.parametrize("sentence", BAD)
def test_each_fault_is_named(sentence: str) -> None:
    assert sentence in failures(BAD[sentence])


def test_the_example_of_the_docs_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECORDS", str(tmp_path / "records.sqlite"))
    monkeypatch.syspath_prepend(str(DOCS))
    assert main(["check-connector", "example_connector"]) == 0
    assert capsys.readouterr().out.count("ok ") == len(CHECKS)
    assert main(["check-connector", "no_such_module"]) == 2
    assert "makes no connector" in capsys.readouterr().err
    sys.modules.pop("example_connector", None)
