"""What runs on Ray Serve: replicas, each a process that serves, and the gateway in front of them.

    Ray's HTTP proxy ──▶ gateway ──HTTP──▶ quire serve of a replica
                            │                    │ its process
                            └──every 0.5 s──▶ replica     where it listens; how many calls it has been given

They are two applications, so that replicas start again without the gateway. Ray counts no calls of replicas, because
calls do not pass through it: the gateway says how many there are, and each replica reports its own to Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from quire.build.bundles import GROUP
from quire.deploy.gateway import Gateway
from quire.deploy.members import Members, Replica
from quire.deploy.places import Need
from quire.deploy.process import KILL_SECONDS, ReplicaProcess
from quire.deploy.scaling import CALLS, by_calls
from quire.deploy.settings import DeploySettings
from quire.serve.settings import ServeSettings

GATEWAY, REPLICAS = "quire", "quire-replicas"
"""The applications; each has one deployment."""
REPLICA = "replica"
FOLLOW_SECONDS = 0.5
ANSWER_SECONDS = 5.0
HEALTH = {"health_check_period_s": 2, "health_check_timeout_s": 15}
TRIES = 1
"""What stops the first start of a replica would stop the next one too. Once one has started, Ray always tries again."""
LOGGING = {"log_level": "WARNING", "enable_access_log": False}
Address = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is deployed, and how."""

    settings: DeploySettings
    served: ServeSettings
    options: Mapping[str, Any]
    """Parsed options of `quire serve`, by name."""
    folder: Path
    """Where relative paths begin."""
    need: Need
    """Of one replica, as Ray calls it."""
    requests_at_once: int
    """That one replica runs, of the expected length."""
    threads: str | None
    """The operator's OMP_NUM_THREADS."""
    is_local: bool
    """Ray was started here, for this: replicas are reached on this machine alone."""


class ReplicaActor:
    def __init__(self, deployment: Deployment) -> None:
        self._drain_seconds, self._calls = deployment.served.drain_seconds, 0
        host = "127.0.0.1" if deployment.is_local else ray.util.get_node_ip_address()
        options = {**deployment.options, "host": host, "port": 0, "config": None}
        variables = _reserved() if deployment.need.has_actors else {}
        self._process = ReplicaProcess(options, deployment.folder, deployment.threads, variables)
        self._process.wait_ready(deployment.settings.deploy_seconds)

    async def exchange(self, calls: Mapping[str, int]) -> Address | None:
        """Takes how many calls each replica has been given; returns this one's name and address, None if it is gone."""
        name = serve.get_replica_context().replica_id.unique_id
        self._calls = calls.get(name, 0)
        return (name, self._process.address) if self._process.is_running else None

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {CALLS: float(self._calls)}

    async def check_health(self) -> None:
        await asyncio.to_thread(self._process.require_live)

    async def __del__(self) -> None:
        """Ray has told the gateway already: no more calls come."""
        if hasattr(self, "_process"):
            await asyncio.to_thread(self._process.stop, self._drain_seconds)


def _reserved() -> dict[str, str]:
    """Where the replica's engine finds places for its ranks."""
    context = ray.get_runtime_context()
    return {"RAY_ADDRESS": context.gcs_address, GROUP: context.get_placement_group_id()}


class GatewayActor:
    def __init__(self, settings: ServeSettings) -> None:
        self._members = Members()
        self._gateway = Gateway(self._members, settings)
        self._following = asyncio.ensure_future(self._follow())

    def __serve_build_asgi_app__(self) -> Gateway:
        return self._gateway

    async def drain(self, seconds: float) -> None:
        """From now on calls are refused; returns when the last one has ended, or after this time."""
        self._gateway.is_draining = True
        end = asyncio.get_running_loop().time() + seconds
        while self._gateway.calls and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)

    async def _follow(self) -> None:
        """Which replicas there are. While one of them does not answer, those that were known stay."""
        replicas = serve.get_deployment_handle(REPLICA, app_name=REPLICAS)
        while True:
            try:
                answers = await replicas.broadcast("exchange", dict(self._members.calls)).results_async(
                    timeout_s=ANSWER_SECONDS, return_exceptions=True
                )
                self._members.replace([Replica(*one) for one in answers if isinstance(one, tuple)])
            except TimeoutError:
                pass
            except Exception:  # Ray's errors for a deployment without replicas
                self._members.replace([])
            await asyncio.sleep(FOLLOW_SECONDS)


def replicas_of(deployment: Deployment) -> Any:
    """The application of the replicas."""
    settings = deployment.settings
    count: dict[str, Any] = {"num_replicas": settings.replicas.fewest}
    if settings.replicas.scales:
        count = {"autoscaling_config": _scaling(deployment)}
    need, own = deployment.need, deployment.need.own
    actor = {"num_cpus": own["CPU"], "num_gpus": own.get("GPU", 0), "memory": own.get("memory", 0)}
    if need.has_actors:
        count["placement_group_bundles"] = [dict(bundle) for bundle in need.bundles]
    configured = serve.deployment(
        ReplicaActor,
        name=REPLICA,
        ray_actor_options=actor,
        graceful_shutdown_timeout_s=deployment.served.drain_seconds + 2 * KILL_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=TRIES,
        logging_config=LOGGING,
        **HEALTH,
        **count,
    )
    return configured.bind(deployment)


def _scaling(deployment: Deployment) -> AutoscalingConfig:
    settings = deployment.settings
    return AutoscalingConfig(
        min_replicas=settings.replicas.fewest,
        max_replicas=settings.replicas.most,
        target_ongoing_requests=deployment.requests_at_once,
        upscale_delay_s=settings.upscale_seconds,
        downscale_delay_s=settings.downscale_seconds,
        policy=AutoscalingPolicy(policy_function=by_calls),
    )


def gateway_of(deployment: Deployment) -> Any:
    """The application of the gateway. It waits for nothing but its replicas: it needs no processor of its own."""
    configured = serve.deployment(
        serve.ingress()(GatewayActor),
        name="gateway",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=deployment.served.connections,
        max_queued_requests=deployment.served.connections,
        graceful_shutdown_timeout_s=deployment.served.drain_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=LOGGING,
        **HEALTH,
    )
    keys = deployment.served.keys
    return configured.bind(replace(deployment.served, keys=keys and deployment.folder / keys))
