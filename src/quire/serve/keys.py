"""API keys: random, shown once, kept as hashes; each one is a tenant with a scope, a weight and limits.

A key is 32 random bytes, so a plain SHA-256 is as hard to invert as the key is to guess. A reader of the file learns
which tenants have keys, and cannot use any.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quire.core.errors import InputError

FORMAT = 1
PREFIX = "quire-"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
"""Nothing that lies in the folder under these names is followed or, for a new file, used."""
LOOK_SECONDS = 1.0
"""How often the file is checked: an added or removed key takes effect within this time."""


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    scope: str
    """The scope of its cached prefixes. The client cannot choose it."""
    weight: float = 1.0
    """Its share if tenants compete."""
    most_requests: int | None = None
    """Running and waiting at once."""
    most_tokens: int | None = None
    """Of one request, prompt and output together."""
    tokens_per_minute: int | None = None
    lease_bytes: int | None = None
    """Memory that its leases may take, what several share counted each time. None: no limit of its own."""
    is_admin: bool = False
    """May drop any scope's cache and ask about any request."""
    key_sha256: str = ""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not self.name.isprintable():
            raise InputError(f"{self.name[:64]!r} is no name for a key: give 1 to 64 printable characters")
        if not 0 < self.weight < math.inf:
            raise InputError(f"key {self.name} has a weight of {self.weight}: give a finite number above 0")
        for limit in ("most_requests", "most_tokens", "tokens_per_minute"):
            value = getattr(self, limit)
            if value is not None and value < 1:
                raise InputError(f"key {self.name} has {limit} {value}: give at least 1, or leave it out")
        if self.lease_bytes is not None and self.lease_bytes < 0:
            raise InputError(f"key {self.name} has lease_bytes {self.lease_bytes}: give 0 or more, or leave it out")


SORTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "scope", "key_sha256"), (str,)),
    **dict.fromkeys(("most_requests", "most_tokens", "tokens_per_minute", "lease_bytes"), (int, type(None))),
    "weight": (int, float),
    "is_admin": (bool,),
}
"""Types of a tenant's fields in a file."""
_SHA256 = re.compile(r"^[0-9a-f]{64}\Z")
EVERYBODY = Tenant("everybody", "", is_admin=True)
"""The tenant of all clients of a server without keys, or with one key for all."""


def digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def shared_key_digest(key: str) -> str:
    """Of a key that an operator chose. The message does not quote it."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError("the key must have at least 1 character, all printable ASCII and none a space: choose another")
    return digest(key)


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def read_keys(path: Path) -> tuple[Tenant, ...]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the keys in {path}: {error.strerror}; make them with quire keys add") from None
    except ValueError as error:
        raise InputError(f"{path} is no file of keys: {error}; make one with quire keys add") from None
    if not isinstance(data, dict) or data.get("quire_keys") != FORMAT or not isinstance(data.get("keys"), list):
        raise InputError(f"{path} is no file of keys of format {FORMAT}: make one with quire keys add")
    return tuple(_tenant(entry, path) for entry in data["keys"])


def _tenant(entry: Any, path: Path) -> Tenant:
    if not isinstance(entry, dict) or not {"name", "scope", "key_sha256"} <= set(entry) <= set(SORTS):
        raise InputError(f"an entry of {path} is not understood: it needs name, scope, key_sha256 of {sorted(SORTS)}")
    for name, value in entry.items():
        if type(value) not in SORTS[name]:
            sorts = " or ".join("null" if sort is type(None) else sort.__name__ for sort in SORTS[name])
            raise InputError(f"an entry of {path} has a {name} that is {type(value).__name__}: give {sorts}")
    if not _SHA256.match(entry["key_sha256"]):  # the entry may be a key by mistake: it is not shown
        raise InputError(f"an entry of {path} has a key_sha256 that is none: make it with quire keys add")
    return Tenant(**entry)


def write_keys(path: Path, tenants: tuple[Tenant, ...]) -> None:
    """Readable only by its owner; a reader sees either the old file or the new one."""
    entries = [{name: value for name, value in asdict(tenant).items() if value is not None} for tenant in tenants]
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(16)}")
    try:
        with os.fdopen(os.open(scratch, NEW_FILE, 0o600), "w", encoding="utf-8") as file:
            json.dump({"quire_keys": FORMAT, "keys": entries}, file, indent=1)
            file.write("\n")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise InputError(f"cannot write the keys to {path}: {error.strerror}") from None


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """One change of the file at a time: each reads what the one before it wrote. The lock's file stays; removing it
    would let two processes hold a lock each."""
    try:
        descriptor = os.open(path.with_name(f".{path.name}.lock"), LOCK_FILE, 0o600)
    except OSError as error:
        raise InputError(f"cannot lock the keys in {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def add_key(path: Path, tenant: Tenant) -> str:
    """Returns the key, which cannot be shown a second time."""
    with _changing(path):
        tenants = read_keys(path) if path.exists() else ()
        if any(one.name == tenant.name for one in tenants):
            raise InputError(f"{path} has a key named {tenant.name}: remove it first, or take another name")
        key = new_key()
        write_keys(path, (*tenants, replace(tenant, key_sha256=digest(key))))
    return key


def remove_key(path: Path, name: str) -> None:
    with _changing(path):
        tenants = read_keys(path)
        left = tuple(one for one in tenants if one.name != name)
        if len(left) == len(tenants):
            known = ", ".join(one.name for one in tenants) or "none"
            raise InputError(f"{path} has no key named {name}: it has {known}")
        write_keys(path, left)


class KeyRing:
    """Finds the tenant of a key. Rereads the file when it changes; an unreadable file leaves the keys as they were."""

    def __init__(
        self, path: Path | None, clock: Callable[[], float] = time.monotonic, *, key_sha256: str | None = None
    ) -> None:
        """`key_sha256`: of the one key that all clients share, if there is no file."""
        self._path, self._clock = path, clock
        shared = () if key_sha256 is None else (replace(EVERYBODY, key_sha256=key_sha256),)
        self._tenants = read_keys(path) if path else shared
        self.is_open = path is None and not shared
        """Whether there are no keys: every client is admitted."""
        self._stamp, self._looked_at = self._file_stamp(), clock()
        self.problem = ""

    def tenants(self) -> tuple[Tenant, ...]:
        return self._tenants or ((EVERYBODY,) if self.is_open else ())

    def find(self, key: str) -> Tenant | None:
        """Compares with every hash, each in constant time, also after a match."""
        self._look()
        sought, found = digest(key), None
        for tenant in self._tenants:
            if hmac.compare_digest(sought, tenant.key_sha256):
                found = tenant
        return found

    def _look(self) -> None:
        now = self._clock()
        if self._path is None or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        try:
            self._tenants, self._stamp, self.problem = read_keys(self._path), stamp, ""
        except InputError as error:
            self.problem = str(error)

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat() if self._path else None
        except OSError:
            return None
        return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
