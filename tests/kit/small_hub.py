"""A hub of models on this machine, for the real client: repositories with commits, branches and tags.

It speaks the part of the hub's HTTP API that the client uses: the list of a revision's files, and the files themselves
with `ETag`, `X-Repo-Commit`, `X-Linked-Etag`, `X-Linked-Size` and ranges. It counts what it is asked for, and can
misbehave: cut connections, send other bytes than it states, refuse.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

LARGE = (".safetensors", ".gguf", ".bin")
"""Kept by SHA-256; other files by git's SHA-1."""
API = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)(?P<what>/revision/|/tree/)(?P<revision>[^/?]+)")
FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")


@dataclass
class Repository:
    """Commits by hash, and the names of some of them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str = ""
    """Needed to read it; empty: none."""
    is_gated: bool = False

    def commit(self, files: dict[str, bytes], *names: str) -> str:
        """Adds a commit, and moves the branches and tags of these names to it."""
        text = json.dumps([len(self.commits), *((name, digest(name, data)) for name, data in sorted(files.items()))])
        made = hashlib.sha1(text.encode()).hexdigest()
        self.commits[made] = files
        self.refs |= dict.fromkeys(names or ("main",), made)
        return made

    def at(self, revision: str) -> str | None:
        found = self.refs.get(revision, revision)
        return found if found in self.commits else None


def digest(name: str, data: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class SmallHub:
    """The hub's state, changed by tests while it runs."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and `Range` of every request."""
        self.sent: dict[str, int] = {}
        """Bytes of file contents that were sent, by file."""
        self.tokens: list[str] = []
        """Authorization of every request that had one."""
        self.cut_after: dict[str, int] = {}
        """By file: the next answer ends after this many bytes, and the connection with it."""
        self.replaced: dict[str, bytes] = {}
        """By file: what is sent instead, under the digest of the true contents."""
        self.is_broken = False
        """Answers 503 to everything."""
        self.url = ""

    def add(self, name: str, files: dict[str, bytes], *refs: str) -> str:
        return self.repositories.setdefault(name, Repository()).commit(files, *refs)

    def weight_bytes(self) -> int:
        """Bytes of weights that were sent."""
        return sum(count for file, count in self.sent.items() if file.endswith(LARGE))

    @contextmanager
    def running(self) -> Iterator[SmallHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.hub = self  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> SmallHub:
        return cast(SmallHub, self.server.hub)  # type: ignore[attr-defined]

    def log_message(self, *_arguments: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(self.path)
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if self.headers.get("Authorization"):
            hub.tokens.append(self.headers["Authorization"])
        match = API.match(self.path) or FILE.match(self.path)
        if hub.is_broken:
            return self._json(503, {})
        if match is None:
            return self._json(404, {}, {"X-Error-Code": "RepoNotFound"})
        repository = hub.repositories.get(match["name"])
        refusal = self._refusal(repository)
        if refusal is not None:
            return self._json(refusal[0], {"error": "no"}, {"X-Error-Code": refusal[1]} if refusal[1] else {})
        assert repository is not None
        commit = repository.at(unquote(match["revision"]))
        if commit is None:
            return self._json(404, {}, {"X-Error-Code": "RevisionNotFound"})
        if "file" in match.groupdict():
            return self._file(repository, commit, unquote(match["file"]))
        return self._listing(repository, commit, match["name"], is_tree=match["what"] == "/tree/")

    def _refusal(self, repository: Repository | None) -> tuple[int, str] | None:
        given = self.headers.get("Authorization", "")
        if given == "Bearer wrong":
            return 401, ""
        if repository is None:
            return 401 if not given else 404, "RepoNotFound"
        if repository.token and given != f"Bearer {repository.token}":
            return (403 if given else 401), "GatedRepo" if repository.is_gated else "RepoNotFound"
        return None

    def _listing(self, repository: Repository, commit: str, name: str, is_tree: bool) -> None:
        entries: list[dict[str, Any]] = []
        for file, data in repository.commits[commit].items():
            entry: dict[str, Any] = {"size": len(data)}
            if file.endswith(LARGE):
                held = {"size": len(data), "pointerSize": 130}
                entry["lfs"] = held | ({"oid": digest(file, data)} if is_tree else {"sha256": digest(file, data)})
            blob = digest(file, data) if not file.endswith(LARGE) else "0" * 40
            entry |= {"type": "file", "path": file, "oid": blob} if is_tree else {"rfilename": file, "blobId": blob}
            entries.append(entry)
        self._json(200, entries if is_tree else {"id": name, "sha": commit, "siblings": entries})

    def _file(self, repository: Repository, commit: str, file: str) -> None:
        data = repository.commits[commit].get(file)
        if data is None:
            return self._json(404, {}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest(file, data)}"', "Accept-Ranges": "bytes"}
        if file.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{digest(file, data)}"', "X-Linked-Size": str(len(data))}
        return self._send(file, self.hub.replaced.get(file, data), headers)

    def _send(self, file: str, data: bytes, headers: dict[str, str]) -> None:
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), int(asked[2] or len(data) - 1) + 1) if asked else (0, len(data))
        end = min(end, len(data))
        if asked:
            headers |= {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
        self._head(206 if asked else 200, headers | {"Content-Length": str(end - begin)})
        if self.command == "HEAD":
            return
        piece = data[begin:end]
        if (cut := self.hub.cut_after.pop(file, None)) is not None:
            piece, self.close_connection = piece[:cut], True
        self.hub.sent[file] = self.hub.sent.get(file, 0) + len(piece)
        self.wfile.write(piece)

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
