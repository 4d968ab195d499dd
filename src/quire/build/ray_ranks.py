"""Ranks as actors on a Ray cluster, in a placement group that ends with the engine's process.

    engine's process: rank 0 ──┬─ steps over TCP ─▶ actor: rank 1     bundle 0: the ranks of the first stage, here
     (a driver of Ray)         └─ steps over TCP ─▶ actor: rank 2     bundle 1: those of the second stage, anywhere

Actors run the code of `quire rank`. Ray places and ends them; their deaths are noticed at the connection, as those of
all ranks are. The driver owns them, so that none outlives it, even one that cannot see its connection close.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.build.bundles import (
    GROUP,
    Resources,
    amount_of,
    amounts_of,
    bundles_of,
    needs_of_ranks,
    place_of_gpu,
    sum_of,
)
from quire.build.follower import follow
from quire.build.launch import Launched, RankSetup, life_of_store, of_a_rank, open_store
from quire.build.ray_driver import HERE, join_ray, ray
from quire.core.errors import InputError, PlanError, QuireError
from quire.core.units import format_bytes
from quire.options.run import RunOptions
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.ranks.environment import Listener, Place
from quire.ranks.group import REAP_SECONDS, Link
from quire.worker.ranks.interfaces import INTERFACE, interface_of
from quire.worker.ranks.share import Share

PINNED = 0.001
"""Of the resource by which Ray names a machine."""
_CAUSE = re.compile(r"(?:actor is dead|actor died) because (.+?)(?:\. |\.?$)", re.MULTILINE)


class RankActor:
    """A rank other than 0."""

    def run(self, setup: RankSetup, place: Mapping[str, str]) -> str:
        """Returns only if rank 0 was not reached, or has been told why this rank ends."""
        interface = interface_of(ray.util.get_node_ip_address())
        os.environ.update(({INTERFACE: interface} if interface else {}) | dict(os.environ) | dict(place))
        try:
            _require_folder(setup.folder)
            follow(setup)
        except QuireError as error:
            return str(error)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        where = ray.util.get_node_ip_address()
        raise InputError(f"{where} has no {folder}: the checkpoint needs the same path on all machines")


class GpuHolder:
    """Keeps the GPU that Ray has given to rank 0, whose process Ray has not started."""

    def gpu(self) -> str:
        return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


@dataclass(eq=False)
class ActorLink(Link):
    """A rank that Ray has started."""

    actor: Any = None
    running: Any = None
    """What the actor's call will return."""

    def end(self) -> None:
        """Ray would report an actor that ends by itself as a crash."""
        self.kill()

    def reap(self) -> None:
        self.kill()
        ray.wait([self.running], timeout=REAP_SECONDS)

    def kill(self) -> None:
        with contextlib.suppress(Exception):  # of a cluster that is gone
            ray.kill(self.actor)
        self.channel.close()

    def ending(self) -> str:
        return _ending(self.running, REAP_SECONDS)


def _ending(running: Any, seconds: float) -> str:
    """Why a call of an actor has ended."""
    try:
        return str(ray.get(running, timeout=seconds))
    except ray.exceptions.GetTimeoutError:
        return "its connection has closed"
    except ray.exceptions.RayTaskError as error:
        return " ".join(str(error.cause).split())
    except ray.exceptions.RayError as error:
        found = _CAUSE.search(str(error))
        return f"its Ray actor ended because {found.group(1)}" if found else f"its Ray actor ended: {error!r}"


def launch_on_ray(folder: Path, plan: Plan, options: RunOptions, shares: Sequence[Share]) -> Launched:
    """An actor for each share but the first."""
    seconds = options.ranks.start_seconds
    with ExitStack() as undo:
        undo.enter_context(_driver())
        group = undo.enter_context(_placed(bundles_of(plan, options), seconds))
        gpu = _gpu_of_rank_0(group, undo) if options.device != "cpu" else 0
        listener = Listener(ray.util.get_node_ip_address())
        undo.callback(listener.close)
        needs = needs_of_ranks(plan, options)
        actors = [_actor(group, share, needs[share.number]) for share in shares[1:]]
        undo.callback(_kill, actors)
        address = listener.address
        store = open_store(Place(0, len(shares), address.host, 0, 0, 1, is_served=False), seconds)  # torch is imported
        setup = RankSetup(folder.resolve(), None, of_a_rank(options), None, None, address)
        places = [_place(share, len(shares), address.host, store.port) for share in shares[1:]]
        running = [actor.run.remote(setup, place) for actor, place in zip(actors, places, strict=True)]
        found = listener.accept(len(shares), seconds, partial(_require_running, running))
        links = [ActorLink(n, found[n], actor=actors[n - 1], running=running[n - 1]) for n in sorted(found)]
        for link in links:
            link.channel.send_json({"plan": encode(plan)})
        life = partial(life_of_store, store, address.token)
        return Launched(links, life, interface_of(address.host), undo.pop_all().close, gpu)


@contextmanager
def _driver() -> Iterator[None]:
    """Connected to Ray; a program that is so already stays so."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or HERE
    if address.startswith("ray://"):
        raise InputError(
            f"RAY_ADDRESS is {address}, and rank 0 is this process: run it on a machine of the cluster, with the "
            "address of ray start (HOST:6379) or auto"
        )
    join_ray(address)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _placed(bundles: Sequence[Resources], seconds: float) -> Iterator[Any]:
    """A placement group. The first bundle is on this machine, where rank 0 is."""
    if given := os.environ.get(GROUP):
        from ray.util.placement_group import PlacementGroup, PlacementGroupID

        yield PlacementGroup(PlacementGroupID.from_hex(given))
        return
    pinned = [{**bundles[0], f"node:{ray.util.get_node_ip_address()}": PINNED}, *map(dict, bundles[1:])]
    group = ray.util.placement_group(pinned, strategy="PACK", name="quire ranks")
    try:
        if not group.wait(max(1, round(seconds))):
            raise PlanError(_no_place(bundles, seconds))
        yield group
    finally:
        ray.util.remove_placement_group(group)


def _no_place(bundles: Sequence[Resources], seconds: float) -> str:
    here = ray.util.get_node_ip_address()
    wanted = [f"{amounts_of(bundles[0])} on {here}", *(f"{amounts_of(one)} on one machine" for one in bundles[1:])]
    stages = ", ".join(f"stage {number} needs {what}" for number, what in enumerate(wanted))
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    names = [name for name in bundles[0] if name in ("CPU", "GPU", "memory")]
    left = " and ".join(f"{amount_of(name, free.get(name, 0))} of {_plain(sum_of(machines), name)}" for name in names)
    count = f"{len(machines)} machine{'s' * (len(machines) != 1)}"
    return (
        f"Ray had no place for the ranks within {seconds:g} s: {stages}; {left} are free on {count}: end what "
        "uses them, add machines, use other --tensor-parallel and --pipeline-parallel, or raise --start-seconds"
    )


def _plain(resources: Resources, name: str) -> str:
    amount = resources.get(name, 0)
    return format_bytes(int(amount)) if name == "memory" else f"{amount:g}"


def _actor(group: Any, share: Share, need: Resources) -> Any:
    """Started; its call comes later. It shares its bundle with the other ranks of its stage."""
    limits = {"num_cpus": need["CPU"], "num_gpus": need.get("GPU", 0), "memory": need.get("memory", 0)}
    return ray.remote(RankActor).options(scheduling_strategy=_in_bundle(group, share.stage), **limits).remote()


def _in_bundle(group: Any, number: int) -> Any:
    return ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)


def _place(share: Share, ranks: int, host: str, port: int) -> dict[str, str]:
    """As torchrun names it. Ray shows each rank its own GPU alone."""
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {"RANK": str(share.number), "WORLD_SIZE": str(ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port), **local}


def _require_running(running: Sequence[Any]) -> None:
    """Raises InputError if a rank has ended before it has connected."""
    done, _ = ray.wait(list(running), num_returns=1, timeout=0)
    for one in done:
        raise InputError(f"rank {running.index(one) + 1} cannot start on Ray: {_ending(one, REAP_SECONDS)}")


def _kill(actors: Sequence[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


def _gpu_of_rank_0(group: Any, undo: ExitStack) -> int:
    """Among those that this process sees."""
    if GROUP in os.environ:
        return 0  # Ray has started this process's parent, and shows it its own alone
    limits = {"num_cpus": 0, "num_gpus": 1}
    holder = ray.remote(GpuHolder).options(scheduling_strategy=_in_bundle(group, 0), **limits).remote()
    undo.callback(ray.kill, holder)
    return place_of_gpu(ray.get(holder.gpu.remote()), os.environ.get("CUDA_VISIBLE_DEVICES"))
