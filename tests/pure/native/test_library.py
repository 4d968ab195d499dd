"""The library in C: how it is compiled and found, and what is said where it is not."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from quire.native import compile as compiling
from quire.native import library
from quire.native.library import CHOICE, OFF, native, versions, why_not


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was found before and after a test is not its own."""
    monkeypatch.delenv(CHOICE, raising=False)
    library._native.cache_clear()
    library._library.cache_clear()
    yield
    library._native.cache_clear()
    library._library.cache_clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that was compiled now, without a warning."""
    if compiling.compiler() is None:
        pytest.skip("there is no C compiler")
    found = tmp_path_factory.mktemp("native") / "made.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-Wall", "-Wextra", "-Werror"))
        assert compiling.build(found) is None
    return found


def test_it_compiles_without_a_warning_and_loads(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", made)
    assert [version.name for version in versions()][-1] == "plain C"
    assert native() is not None
    assert not why_not()
    assert list(made.parent.iterdir()) == [made]


def test_an_instruction_set_is_chosen_by_name_or_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", made)
    monkeypatch.setenv(CHOICE, "plain C")
    found = native()
    assert found is not None
    assert found.name == "plain C"
    monkeypatch.setenv(CHOICE, "SSE9")
    assert native() is None
    assert why_not() == "it has no version 'SSE9' for this processor"
    monkeypatch.setenv(CHOICE, OFF)
    assert native() is None
    assert why_not() == "QUIRE_NATIVE is off"


def test_a_library_that_is_missing_or_broken_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "made.so")
    assert native() is None
    assert "was not compiled when Quire was installed" in why_not()
    library._library.cache_clear()
    (tmp_path / "made.so").write_bytes(b"no library")
    assert versions() == []
    assert "made.so cannot be loaded" in why_not()


def test_a_library_from_other_sources_is_left_out(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", made)
    monkeypatch.setattr(library, "SIZES", library.SIZES[1:])
    assert native() is None
    assert "compiled from other sources" in why_not()


@pytest.mark.parametrize(
    ("command", "why"),
    [("/nowhere/cc -O1", "/nowhere/cc does not run"), ("false", "false failed"), ("", "there is no C compiler")],
)
def test_an_installation_without_a_compiler_says_why(
    command: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    monkeypatch.setattr(compiling, "COMPILERS", ())
    found = compiling.build(tmp_path / "made.so")
    assert found is not None
    assert why in found
    assert not list(tmp_path.iterdir())


def test_the_build_hook_makes_a_wheel_for_this_platform_or_a_pure_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, root = _hook(monkeypatch), tmp_path / "src" / "quire" / "native"
    root.mkdir(parents=True)
    why: list[str | None] = [None, "there is no C compiler"]
    monkeypatch.setattr(runpy, "run_path", lambda _path: {"LIBRARY": root / "made.so", "build": lambda: why.pop(0)})
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize(SimpleNamespace(root=tmp_path), "standard", data)
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert data["artifacts"] == ["src/quire/native/*.so"]
    pure: dict[str, Any] = {"artifacts": []}
    hook.initialize(SimpleNamespace(root=tmp_path), "editable", pure)
    assert pure == {"artifacts": []}
    assert "there is no C compiler" in capsys.readouterr().err


def _hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Without hatchling, which only a build has."""
    name, parts = "hatchling.builders.hooks.plugin.interface", []
    for part in name.split("."):
        parts.append(part)
        monkeypatch.setitem(sys.modules, ".".join(parts), ModuleType(".".join(parts)))
    base = type("BuildHookInterface", (), {"__class_getitem__": classmethod(lambda cls, _plugin: cls)})
    sys.modules[name].BuildHookInterface = base  # type: ignore[attr-defined]
    return runpy.run_path(str(Path(__file__).parents[3] / "hatch_build.py"))["NativeHook"]
