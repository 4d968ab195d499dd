"""Which files of a repository make a checkpoint: configuration, tokenizer, and weights as safetensors or one GGUF file.

No pickle is ever downloaded, and no code: both could run whatever their author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from quire.core.units import format_bytes
from quire.fetch.errors import HubError
from quire.fetch.hub_names import HubId
from quire.models.checkpoint import INDEX

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
QUANTISATION = "hf_quant_config.json"
"""Of ModelOpt."""
ONLY_WEIGHTS = "model.safetensors"
TEXT_FILES = (
    CONFIG, INDEX, TOKENIZER, "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
    "special_tokens_map.json", "added_tokens.json", "quantize_config.json", "quant_config.json", QUANTISATION,
)  # fmt: skip
"""Small files that are read where they exist."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SHOWN = 6
"""Files named in a refusal; the others are counted."""
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    bytes: int | None = None
    """None: not stated."""
    digest: str = ""
    """SHA-256 of a large file, git's SHA-1 of a small one, in hexadecimal; empty: not stated."""

    @classmethod
    def of_listing(cls, one: RepoSibling) -> HubFile:
        if one.lfs is not None:
            return cls(one.rfilename, one.lfs.size, one.lfs.sha256)
        return cls(one.rfilename, one.size, one.blob_id or "")

    @classmethod
    def of_cache(cls, name: str, path: Path) -> HubFile:
        """The cache names contents by their digests, and links to them."""
        stored = path.resolve().name
        return cls(name, None, stored if _DIGEST.fullmatch(stored) else "")


def is_outside(name: str) -> bool:
    """Whether a name that a hub lists would lead out of the repository's folder."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


def choose_gguf(hub_id: HubId, listed: Mapping[str, HubFile]) -> tuple[HubFile, ...]:
    """The GGUF file that was asked for, or the only one of a repository without safetensors; of a model in several
    parts all of them, the first one first. Empty: none is meant."""
    names = sorted(name for name in listed if name.lower().endswith(".gguf") and not _is_later_part(name))
    if not hub_id.file and (not names or any(name.endswith(".safetensors") for name in listed)):
        return ()
    if not names:
        raise HubError(f"{hub_id.repository} has no GGUF files: leave out :{hub_id.file}")
    asked = hub_id.file.lower()
    named = [name for name in names if name.lower() == asked] or [name for name in names if asked in name.lower()]
    if len(named) != 1:
        problem = f"{len(named)} of its {len(names)} GGUF files match" if asked else f"it has {len(names)} GGUF files"
        raise HubError(f"{hub_id}: {problem}: write {hub_id.repository}:FILE, one of {_shown(named or names)}")
    parts = _parts(named[0])
    if missing := [name for name in parts if name not in listed]:
        raise HubError(f"{hub_id} lacks {len(missing)} of the {len(parts)} parts of {named[0]}: {_shown(missing)}")
    return tuple(listed[name] for name in parts)


def _is_later_part(name: str) -> bool:
    match = _PART.search(name)
    return match is not None and int(match[1]) > 1


def _parts(name: str) -> list[str]:
    match = _PART.search(name)
    if match is None:
        return [name]
    before, after = name[: match.start(1)], name[match.end(1) :]
    return [f"{before}{part:05}{after}" for part in range(1, int(match[2]) + 1)]


def choose_weights(hub_id: HubId, listed: Mapping[str, HubFile], index: Sequence[str] | None) -> tuple[HubFile, ...]:
    """The safetensors that the index names, or the only file. Raises if the repository lacks what a model needs."""
    whole = sorted(name for name in listed if name.endswith(".safetensors") and "/" not in name)
    if not whole:
        raise HubError(f"{hub_id} {_without_weights(listed)}")
    for name in (CONFIG, TOKENIZER):
        if name not in listed:
            raise HubError(f"{hub_id} has no {name}, which is needed: choose a repository that transformers loads")
    if index is None:
        names = [ONLY_WEIGHTS] if ONLY_WEIGHTS in whole else whole
        if len(names) > 1:
            raise HubError(f"{hub_id} has {len(names)} files *.safetensors and no {INDEX}: 1 file is expected")
    else:
        names = list(index)
        if missing := [name for name in names if name not in listed]:
            raise HubError(f"{hub_id} lacks {len(missing)} of {len(names)} files of weights: {_shown(missing)}")
    return tuple(listed[name] for name in names)


def _without_weights(listed: Mapping[str, HubFile]) -> str:
    pickles = sorted(name for name in listed if name.lower().endswith(PICKLES))
    if not pickles:
        return "has no weights as safetensors or GGUF: choose another repository"
    size = sum(listed[name].bytes or 0 for name in pickles)
    held = f"{_shown(pickles)}, {format_bytes(size)}"
    return f"has weights as pickles alone ({held}), which can run code: choose one with safetensors or GGUF files"


def _shown(names: Sequence[str]) -> str:
    others = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + others
