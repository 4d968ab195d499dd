"""Where prefixes are cached outside the pool: host memory, a folder, a server, third-party stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quire.core.connector import Connector
from quire.core.units import MIB
from quire.options.flags import option, part, read_texts
from quire.options.peer import Peer
from quire.options.secret import read_secret
from quire.options.texts import folder_and_quota, parse_bytes

STAGING_BYTES = 256 * MIB
"""Host memory if only a disk or a server was given: transfers need staging memory."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """The caches of prefixes outside the pool. By default there are none."""

    host_bytes: int | None = option(
        None,
        "host",
        "cache prefixes in this much host memory, for example 4GiB",
        "--host-memory",
        parse=parse_bytes,
        metavar="BYTES",
    )
    disk: Path | None = option(
        None,
        "stores",
        "also cache prefixes on disk: directory and optional quota, for example cache:50GiB",
        fields=("disk", "disk_bytes"),
        parse=folder_and_quota,
        metavar="DIR[:QUOTA]",
    )
    disk_bytes: int | None = None
    """Quota of the folder; None: nine tenths of what is free there."""
    remote: str | None = option(
        None, "stores", "also cache prefixes in a Redis or Valkey server: redis://[user:password@]host", metavar="URL"
    )
    """redis://, rediss:// or unix:// address."""
    connectors: tuple[str | Connector, ...] = option(
        (),
        "stores",
        "also cache prefixes through your own connector class (docs/tiers.md; may be repeated)",
        "--connector",
        metavar="MODULE:NAME",
    )
    """Asked after the other tiers, in this order. Connectors for another process are given by name."""
    peer: Peer | None = field(default=None, metadata=part(Peer, "a hand-over"))
    """The server that computes prompts for this one, or for which this one does."""
    secret: Path | None = option(
        None,
        "stores",
        "file with a secret that proves who wrote a record and hides its name (default: none)",
        "--tier-secret",
        parse=Path,
        metavar="FILE",
    )
    """Shared by all engines that share a folder or a server."""

    def __post_init__(self) -> None:
        read_texts(self)

    def read_secret(self) -> bytes:
        """Empty if there is none."""
        return b"" if self.secret is None else read_secret(self.secret, "--tier-secret")

    @property
    def is_empty(self) -> bool:
        return not (self.host_bytes or self.disk or self.remote or self.connectors or self.peer)

    @property
    def is_shared(self) -> bool:
        """Whether records leave the process: then they must name the weights that they belong to."""
        return bool(self.disk or self.remote or self.connectors or self.peer)

    @property
    def memory_bytes(self) -> int:
        return self.host_bytes or STAGING_BYTES
