"""A model on a hub: found, planned from its small files, then downloaded into the cache shared by the hub's clients.

org/name@revision ──▶ commit, list of files ──▶ config.json ──▶ (plan) ──▶ weights ──size, digest──▶ folder
                      pickles are refused       index           what does not fit is refused before any weight is read

`huggingface_hub` transfers the files: tokens, proxies, `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_OFFLINE` are its own.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from tqdm import tqdm

from quire.fetch.errors import HubError
from quire.fetch.folder import read_object
from quire.fetch.hub_errors import HubAway, endpoint, hub_errors
from quire.fetch.hub_files import (
    CONFIG,
    ONLY_WEIGHTS,
    QUANTISATION,
    TEXT_FILES,
    TOKENIZER,
    HubFile,
    choose_gguf,
    choose_weights,
    is_outside,
)
from quire.fetch.hub_headers import CLIENT, SECONDS, gguf_header, tensors_of
from quire.fetch.hub_names import COMMIT, HubId
from quire.models.checkpoint import INDEX, read_index
from quire.models.quantisation import format_of, section_in
from quire.models.stored_bits import add_stored_bits, with_stored_bits

_LOG = logging.getLogger("quire.fetch")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A commit of a repository, and which of its files make a checkpoint."""

    hub_id: HubId
    commit: str
    files: tuple[HubFile, ...]
    """Those that are needed, the small ones first."""
    away: str = ""
    """Why the hub cannot be asked; empty: it answers."""

    @property
    def name(self) -> str:
        return self.hub_id.repository

    @property
    def cache(self) -> Path:
        """The repository's folder in the shared cache."""
        return Path(constants.HF_HUB_CACHE) / self.hub_id.cache_name

    @property
    def folder(self) -> Path:
        return self.cache / "snapshots" / self.commit

    @property
    def gguf(self) -> HubFile | None:
        """Of several parts the first."""
        return next((file for file in self.files if file.name.endswith(".gguf")), None)

    @property
    def missing(self) -> list[HubFile]:
        return [file for file in self.files if not (self.folder / file.name).exists()]


def find_hub_model(hub_id: HubId) -> HubModel:
    """Asks the hub, or takes what the cache has if the hub cannot be asked. Downloads the configuration and the index
    of the weights, and nothing else."""
    try:
        with hub_errors(hub_id):
            return _asked(hub_id)
    except HubAway as away:
        return _cached(hub_id, away)


def _asked(hub_id: HubId) -> HubModel:
    info = HfApi(**CLIENT).model_info(hub_id.repository, revision=hub_id.revision, timeout=SECONDS, files_metadata=True)
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise HubError(f"{endpoint()} names no commit of {hub_id}: check HF_ENDPOINT")
    listed = {one.rfilename: HubFile.of_listing(one) for one in info.siblings or ()}
    if outside := [name for name in listed if is_outside(name)]:
        raise HubError(f"{endpoint()} lists {outside[0]!r} in {hub_id}, which lies outside of it: check HF_ENDPOINT")
    if ggufs := choose_gguf(hub_id, listed):
        return HubModel(hub_id, info.sha, ggufs)
    model = HubModel(hub_id, info.sha, tuple(listed[name] for name in TEXT_FILES if name in listed))
    for name in (CONFIG, INDEX):  # by revision, so that the cache knows the commit by that name without the hub, too
        if name in listed and download(model, name, hub_id.revision).parent != model.folder:
            raise HubError(f"{hub_id} got a new commit just now: try again")
    index = read_index(model.folder / INDEX) if INDEX in listed else None
    return HubModel(hub_id, info.sha, (*model.files, *choose_weights(hub_id, listed, index)))


def _cached(hub_id: HubId, away: HubAway) -> HubModel:
    """What earlier downloads left, by any client of the hub. Files that a checkpoint needs are listed in any case."""
    cache = Path(constants.HF_HUB_CACHE) / hub_id.cache_name
    commit = hub_id.revision if COMMIT.fullmatch(hub_id.revision) else _ref(cache, hub_id.revision)
    folder = cache / "snapshots" / commit
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if commit and path.is_file()}
    listed = {name: HubFile.of_cache(name, path) for name, path in found.items()}
    ggufs = [name for name in listed if name.endswith(".gguf") and hub_id.file.lower() in name.lower()]
    if not (ggufs or (CONFIG in listed and not hub_id.file)):
        raise HubError(f"{hub_id} is not in {constants.HF_HUB_CACHE}, and {away}")
    if not constants.is_offline_mode():
        _LOG.warning("%s: the copy in the cache is used, commit %s: %s", hub_id, commit[:12], away)
    if chosen := choose_gguf(hub_id, listed):
        return HubModel(hub_id, commit, chosen, str(away))
    index = read_index(folder / INDEX) if INDEX in listed else None
    has_weights = index is None and any(name.endswith(".safetensors") for name in listed)
    needed = (TOKENIZER, *(index or (() if has_weights else (ONLY_WEIGHTS,))))
    listed = {name: HubFile(name) for name in needed} | listed
    small = (listed[name] for name in TEXT_FILES if name in listed)
    return HubModel(hub_id, commit, (*small, *choose_weights(hub_id, listed, index)), str(away))


def _ref(cache: Path, revision: str) -> str:
    """The commit that a branch or tag had; empty: it is not known here."""
    try:
        commit = (cache / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return ""
    return commit if COMMIT.fullmatch(commit) else ""


class SilentBar(tqdm):  # type: ignore[misc]
    """A bar that shows nothing, for small files."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "disable": True})


def download(model: HubModel, name: str, revision: str = "", bar: type[Any] = SilentBar) -> Path:
    """One file into the shared cache. The client renames it when it is complete."""
    asked = revision or model.commit
    return Path(hf_hub_download(model.name, name, revision=asked, etag_timeout=SECONDS, tqdm_class=bar, **CLIENT))


def hub_configuration(model: HubModel) -> dict[str, Any]:
    """The config.json, with what the headers of the files say about quantised weights; of a GGUF file as it will be
    converted, from its first bytes."""
    if model.gguf is None:
        return _with_headers(model, read_object(model.folder / CONFIG))
    from quire.fetch.convert import configuration_of

    if not model.missing:
        return configuration_of(model.folder / model.gguf.name)
    if model.away:
        raise HubError(f"{model.hub_id}: {model.missing[0].name} is not in the cache, and {model.away}")
    with tempfile.TemporaryDirectory() as scratch:
        first, *_ = [gguf_header(model, file, Path(scratch) / Path(file.name).name) for file in model.files]
        return configuration_of(first, is_whole=False)


def _with_headers(model: HubModel, config: dict[str, Any]) -> dict[str, Any]:
    if not any(file.name.endswith(".safetensors") for file in model.missing):
        return with_stored_bits(model.folder, config)
    if any(file.name == QUANTISATION for file in model.missing) and not model.away:
        with hub_errors(model.hub_id):
            download(model, QUANTISATION)
    section = section_in(model.folder)
    if section is None:
        return config
    if model.away:
        _LOG.warning("%s: quantised weights are counted from the configuration: %s", model.hub_id, model.away)
        return config
    format_of(section)  # refuses what is not read, before the hub is asked for headers
    return add_stored_bits(config, section, tensors_of(model))
