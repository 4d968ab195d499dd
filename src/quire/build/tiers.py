"""Puts tiers together: host memory, a folder, a server behind one stack, and the runner's copies to and from it.

Tiers(host_bytes=…, disk=…, remote=…) ──▶ Stack (tier and keeper of the engine) + Staging (of the runner)
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from quire.build.machine import available_bytes
from quire.core.connector import Connector, Layout
from quire.core.errors import InputError
from quire.core.peer import Peer, Role
from quire.core.units import MIB, format_bytes
from quire.core.version import __version__
from quire.plan.file import encode, layout_fingerprint
from quire.plan.plan import Plan
from quire.plan.records import Records, host_plan
from quire.tiers.guarded import GuardedTier
from quire.tiers.stack import Stack

if TYPE_CHECKING:
    from quire.movers.host import HostMemory
    from quire.worker.copies import Copies
    from quire.worker.runner import TorchRunner

STAGING_BYTES = 256 * MIB
"""Host memory where only a disk or a server was asked for: what travels needs a place on the way."""
MEMBERS = ("name", "register", "has", "write", "read", "drop", "close")
"""Of a connector."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where prefixes live beyond the pool. Nothing given: nowhere."""

    host_bytes: int | None = None
    disk: Path | None = None
    disk_bytes: int | None = None
    """Quota of the folder; none: nine tenths of what is free there."""
    remote: str | None = None
    """redis://, rediss:// or unix:// address of a Redis or Valkey server."""
    connectors: tuple[Connector, ...] = ()
    """Asked behind the others, in this order."""
    peer: Peer | None = None
    """An engine that computes prompts for this one, or for which this one does (`quire.build.peers`)."""

    @property
    def is_empty(self) -> bool:
        return not (self.host_bytes or self.disk or self.remote or self.connectors or self.peer)

    @property
    def is_shared(self) -> bool:
        """Whether records leave the process: then they must tell whose weights they are of."""
        return bool(self.disk or self.remote or self.connectors or self.peer)

    @property
    def memory_bytes(self) -> int:
        return self.host_bytes or STAGING_BYTES


def attach(plan: Plan, runner: TorchRunner, tiers: Tiers, weights: str) -> Stack:
    """`weights`: tells models of one shape apart (`quire.build.identity`)."""
    from quire.movers.host import HostMemory, check_budget
    from quire.worker.staging import Staging

    records, is_gpu = Records(plan), runner.device.type != "cpu"
    pool = 0 if is_gpu else runner.arena.stage.pool_bytes  # in the same memory, and taken as it is first written to
    check_budget(tiers.memory_bytes, max(0, available_bytes() - pool), "--host-memory")
    memory = HostMemory(tiers.memory_bytes, records.block_bytes, is_pinned=is_gpu)
    stack = Stack(records, memory, _connectors(tiers), layout_of(plan, weights), lands_later=is_gpu)
    runner.staging = Staging(plan, _copies(runner, memory), stack)
    return stack


def _copies(runner: TorchRunner, memory: HostMemory) -> Copies:
    from quire.worker.bus import Bus
    from quire.worker.copies import Directly

    if runner.device.type == "cpu":
        return Directly(runner.arena.bytes, memory.tensor)
    return Bus(runner.arena.bytes, memory.tensor, runner.arena.stage.sheet_bytes)


def _connectors(tiers: Tiers) -> list[Connector]:
    from quire.movers.disk import DiskFolder
    from quire.movers.remote import RemoteStore

    disk = [DiskFolder(tiers.disk, tiers.disk_bytes)] if tiers.disk else []
    remote = [RemoteStore(tiers.remote)] if tiers.remote else []
    return [*disk, *remote, *tiers.connectors]


def connector_of(name: str) -> Connector:
    """A connector of someone else's: `MODULE:NAME`, NAME called without arguments; `connector` where none is given."""
    module, _, attribute = name.partition(":")
    try:
        made = getattr(_module(module), attribute or "connector")()
    except Exception as error:  # it is anyone's code
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{name} makes no connector: {problem}; write MODULE:NAME, where NAME() makes one") from error
    if lacking := [member for member in MEMBERS if not hasattr(made, member)]:
        raise InputError(f"{name} makes no connector: a {type(made).__name__} has no {', '.join(lacking)}")
    return cast(Connector, made)


def _module(name: str) -> ModuleType:
    """Installed, or else in the working directory."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        return importlib.import_module(name)


def layout_of(plan: Plan, weights: str) -> Layout:
    """Equal for engines that may exchange records: the same weights, layout and version of Quire."""
    records = Records(plan)
    fields = json.dumps([__version__, layout_fingerprint(plan), weights])
    return Layout(
        hashlib.sha256(fields.encode()).hexdigest(),
        records.unit_tokens,
        records.unit_bytes,
        records.largest_boundary_bytes,
        json.dumps(encode(plan)["stages"]),
    )


def describe(plan: Plan, tiers: Tiers, behind: Sequence[GuardedTier]) -> list[str]:
    """For the report at the start: what each tier holds, and how many idle sessions that keeps warm. `behind`: those
    behind host memory, as they were attached; one that does not work promises nothing."""
    promises = []
    if tiers.disk:
        free = f"nine tenths of what is free in {tiers.disk}"
        promises.append(free if tiers.disk_bytes is None else _capacity(plan, tiers.disk_bytes))
    if tiers.remote:
        promises.append("a server, as much as it keeps")
    promises += ["a store of your own, as much as it keeps"] * len(tiers.connectors)
    if tiers.peer is not None and tiers.peer.role is Role.DECODE:
        promises.append(f"{tiers.peer.host}:{tiers.peer.port} computes prompts")
    lines = [f"{tier.name}: {_state(tier) or promise}" for tier, promise in zip(behind, promises, strict=True)]
    if tiers.peer is not None and tiers.peer.role is Role.PREFILL:
        lines.append(f"peer: computes prompts for others, listens at {tiers.peer.host}:{tiers.peer.port}")
    return [f"host: {_capacity(plan, tiers.memory_bytes)}", *lines]


def _capacity(plan: Plan, budget: int) -> str:
    holds = host_plan(plan, budget)
    blocks = f"{holds.blocks:,} blocks of {format_bytes(holds.block_bytes)}"
    warm = f"{holds.warm_sessions:,} idle sessions of {holds.session_tokens:,} tokens stay warm"
    return f"{format_bytes(budget)}, {blocks}; {warm}"


def _state(tier: GuardedTier) -> str:
    """What is wrong with it; empty: nothing."""
    if tier.can_write or (tier.can_read and tier.brings_only):
        return ""
    reason = tier.reason.removeprefix("cannot use: ")
    return f"READ ONLY, nothing new is kept there: {reason}" if tier.can_read else f"NOT IN USE, {reason}"
