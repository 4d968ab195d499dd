"""The third step: the caches of prefixes outside the pool, and the copies between them and the pages.

Tiers(host_bytes=…, disk=…, remote=…) ──▶ Stack, for the engine + Staging, for the runner
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from quire.build.machine import available_bytes
from quire.core.connector import Connector, Layout
from quire.core.errors import InputError
from quire.core.units import format_bytes
from quire.core.version import __version__
from quire.options.peer import Role
from quire.options.tiers import Tiers
from quire.plan.file import encode, layout_fingerprint
from quire.plan.plan import Plan
from quire.plan.records import Records, host_plan
from quire.ranks.channel import Json
from quire.ranks.memory import FollowedMemory
from quire.ranks.stores import Answers, FollowedStore, RankedStore
from quire.tiers.guarded import GuardedTier
from quire.tiers.stack import Stack

if TYPE_CHECKING:
    from quire.movers.disk import DiskFolder
    from quire.movers.host import HostMemory
    from quire.worker.pages.arena import Arena
    from quire.worker.pages.copies import Copies
    from quire.worker.pages.staging import Staging

Order = Callable[[Json], Answers]
MEMBERS = ("name", "register", "has", "write", "read", "drop", "close")
"""Of a connector."""


def attach(
    plan: Plan,
    arena: Arena,
    tiers: Tiers,
    identity: str,
    wake: Callable[[], None] | None = None,
    *,
    order: Order | None = None,
) -> tuple[Stack, Staging]:
    """`identity`: of the model that computes the records (`quire.build.identity`). `wake`: called when a record was
    stored, from any thread. `order`: sends an order about a record to the other ranks; None: there are none."""
    from quire.movers.host import HostMemory, check_budget
    from quire.worker.pages.staging import Staging, rank_block_bytes

    records, is_gpu = Records(plan), arena.bytes.device.type != "cpu"
    pool = 0 if is_gpu else arena.stage.pool_bytes  # in the same memory, and allocated when it is first written to
    check_budget(tiers.memory_bytes, max(0, available_bytes() - pool), "--host-memory")
    memory = HostMemory(tiers.memory_bytes // len(plan.ranks), rank_block_bytes(plan), is_pinned=is_gpu)
    ranked = None if order is None else partial(RankedStore, memory=memory, ranks=len(plan.ranks), order=order)
    stack = Stack(records, memory, stores_of(tiers, ranked), layout_of(plan, identity), lands_later=is_gpu, wake=wake)
    return stack, Staging(plan, _copies(arena, memory), stack)


def follow(plan: Plan, arena: Arena, tiers: Tiers, rank: int) -> tuple[FollowedMemory, Staging]:
    """The same on a rank other than 0, which is told what to copy, and what to do with its store."""
    from quire.movers.host import HostMemory
    from quire.worker.pages.staging import Staging, rank_block_bytes

    host = HostMemory(tiers.memory_bytes // len(plan.ranks), rank_block_bytes(plan))
    memory = FollowedMemory([FollowedStore(folder, host, rank, len(plan.ranks)) for folder in _folders(tiers)])
    return memory, Staging(plan, _copies(arena, host), memory)


def _copies(arena: Arena, memory: HostMemory) -> Copies:
    from quire.worker.pages.bus import Bus
    from quire.worker.pages.copies import Directly

    if arena.bytes.device.type == "cpu":
        return Directly(arena.bytes, memory.tensor)
    return Bus(arena.bytes, memory.tensor, arena.stage.sheet_bytes)


def stores_of(tiers: Tiers, ranked: Callable[[Connector], Connector] | None = None) -> list[Connector]:
    """The tiers below host memory, in the order in which they are asked. `ranked`: makes one store of those of all
    ranks."""
    from quire.movers.hidden import hidden
    from quire.movers.remote import RemoteStore

    secret = tiers.read_secret()
    disk = [folder if ranked is None else ranked(folder) for folder in _folders(tiers)]
    remote = [RemoteStore(tiers.remote, secret)] if tiers.remote else []
    stores: list[Connector] = [*disk, *remote, *load_connectors(tiers)]
    return [hidden(store, secret) for store in stores]


def _folders(tiers: Tiers) -> list[DiskFolder]:
    from quire.movers.disk import DiskFolder

    return [DiskFolder(tiers.disk, tiers.disk_bytes, tiers.read_secret())] if tiers.disk else []


def load_connectors(tiers: Tiers) -> tuple[Connector, ...]:
    """The connectors; those given by name are constructed."""
    return tuple(connector_of(one) if isinstance(one, str) else one for one in tiers.connectors)


def connector_of(name: str) -> Connector:
    """A connector of the user's own: `MODULE:NAME`, NAME called without arguments; without NAME, `connector`."""
    module, _, attribute = name.partition(":")
    try:
        made = getattr(_module(module), attribute or "connector")()
    except Exception as error:  # the user's own code
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


def layout_of(plan: Plan, identity: str) -> Layout:
    """Equal for engines that may exchange records: the same weights, layout and version of Quire."""
    records = Records(plan)
    fields = json.dumps([__version__, layout_fingerprint(plan), identity])
    return Layout(
        hashlib.sha256(fields.encode()).hexdigest(),
        records.unit_tokens,
        records.unit_bytes,
        records.largest_boundary_bytes,
        json.dumps(encode(plan)["stages"]),
    )


def describe(plan: Plan, tiers: Tiers, below: Sequence[GuardedTier]) -> list[str]:
    """For the report at the start: what each tier holds, and how many idle sessions that keeps warm. `below`: the tiers
    below host memory, as they were attached; one that does not work promises nothing."""
    promises = []
    if tiers.disk:
        free = f"nine tenths of what is free in {tiers.disk}"
        promises.append(free if tiers.disk_bytes is None else _capacity(plan, tiers.disk_bytes))
    if tiers.remote:
        promises.append("a server, as much as it keeps")
    promises += ["a store of your own, as much as it keeps"] * len(tiers.connectors)
    if tiers.peer is not None and tiers.peer.role is Role.DECODE:
        promises.append(f"{tiers.peer.host}:{tiers.peer.port} computes prompts")
    lines = [f"{tier.name}: {_state(tier) or promise}" for tier, promise in zip(below, promises, strict=True)]
    if tiers.peer is not None and tiers.peer.role is Role.PREFILL:
        lines.append(f"peer: computes prompts for others, listens at {tiers.peer.host}:{tiers.peer.port}")
    return [f"host: {_capacity(plan, tiers.memory_bytes)}", *lines]


def _capacity(plan: Plan, budget: int) -> str:
    holds = host_plan(plan, budget)
    blocks = f"{holds.blocks:,} blocks of {format_bytes(holds.block_bytes)}"
    warm = f"{holds.warm_sessions:,} idle sessions of {holds.session_tokens:,} tokens stay warm"
    return f"{format_bytes(budget)}, {blocks}; {warm}"


def _state(tier: GuardedTier) -> str:
    """What is wrong with a tier; empty if it works."""
    if tier.can_write or (tier.can_read and tier.brings_only):
        return ""
    reason = tier.reason.removeprefix("cannot use: ")
    return f"READ ONLY, nothing new is kept there: {reason}" if tier.can_read else f"NOT IN USE, {reason}"
