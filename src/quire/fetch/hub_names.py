"""Names of models on a hub, and the folders that they have in the cache shared by its clients.

org/name                        the default branch
org/name@revision               a branch, a tag or a commit
org/name@revision:FILE.gguf     one GGUF file of several, by its name or by a part that no other name has

models--org--name/snapshots/COMMIT/…      in the cache: files of one commit
models--org--name/refs/REVISION           the commit that a branch or tag had when it was last resolved
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from quire.fetch.folder import MANIFEST

DEFAULT_REVISION = "main"
LONGEST = 400
"""Characters of an id. Paths may be longer."""
COMMIT = re.compile(r"[0-9a-f]{40}")
_ID = re.compile(
    r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^\s:@]+))?(:(?P<file>[^\s:]+))?", re.ASCII | re.IGNORECASE
)
_FILE_ENDINGS = (".gguf", ".json", ".safetensors")
"""Of paths: no repository of models is called like this."""


@dataclass(frozen=True, slots=True)
class HubId:
    """What a user asked for."""

    repository: str
    revision: str = DEFAULT_REVISION
    file: str = ""
    """A GGUF file, or a part of its name; empty: the only one, or safetensors."""

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repository}{revision}" + (f":{self.file}" if self.file else "")

    @property
    def cache_name(self) -> str:
        return "models--" + self.repository.replace("/", "--")


def read_hub_id(text: str) -> HubId | None:
    """None: it is written as a path, or has no organisation."""
    found = _ID.fullmatch(text)
    if found is None or found["repository"].lower().endswith(_FILE_ENDINGS):
        return None
    if ".." in text or "--" in found["repository"] or len(text) > LONGEST:
        return None
    return HubId(found["repository"], found["revision"] or DEFAULT_REVISION, found["file"] or "")


def revision_of(folder: Path) -> str:
    """`org/name@COMMIT` of a folder in the hub's cache, or of a GGUF file from there that was converted into this
    folder. Empty for all other folders."""
    folder = folder.absolute()
    if COMMIT.fullmatch(folder.name) and folder.parent.name == "snapshots":
        return f"{folder.parent.parent.name.removeprefix('models--').replace('--', '/')}@{folder.name}"
    try:
        source = json.loads((folder / MANIFEST).read_text())["source"]["gguf"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    places = Path(source).parents
    snapshot = next((place for place in places if place.parent.name == "snapshots"), None)
    return "" if snapshot is None else revision_of(snapshot)
