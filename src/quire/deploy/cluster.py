"""Starts Ray or joins it, runs the applications there until a signal, and leaves nothing behind.

SIGTERM, SIGINT ──▶ calls are refused, those in progress end (drain_seconds at most) ──▶ all ends; a second one: at once
SIGHUP          ──▶ the replicas start again, one after another
"""

from __future__ import annotations

import logging
import os
import queue
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray
from ray import serve

from quire.build.ray_driver import LOCAL, join_ray
from quire.core.errors import InputError, QuireError
from quire.deploy.application import GATEWAY, LOGGING, REPLICAS, Deployment, gateway_of, replicas_of
from quire.deploy.places import require_places

OBJECT_STORE_BYTES = 80 << 20
"""Next to nothing passes through it; less than this Ray refuses."""
TOKEN = "RAY_AUTH_TOKEN"
"""What calls of Ray's processes prove, which listen at all addresses and run code that they are sent."""
PROXY_START = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
"""Ray ends a proxy that is not ready after 5 s, and then `serve.start`, which waits 60 s for that proxy, fails: as on a
machine that is busy."""
LOOK_SECONDS = 0.5
FAILURE = re.compile(r"ReplicaFailed: (.+)")
STOP = (signal.SIGINT, signal.SIGTERM)
Announce = Callable[[str], None]


class NotDeployed(QuireError):
    """The replicas did not start."""


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Ray, started here for as long as this lasts, or a cluster that is joined."""
    if address is None:
        os.environ.setdefault(TOKEN, secrets.token_hex(32))  # else Ray writes one to a file that others may read
        join_ray(LOCAL, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    else:
        join_ray(address)
    try:
        yield
    finally:
        ray.shutdown()


def run(deployment: Deployment, address: str | None, model: str, announce: Announce) -> None:
    with cluster(address):
        signals = _signals()
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        require_places(machines, deployment.need.bundles, deployment.settings.replicas.fewest)
        _require_free(address)
        served = deployment.served
        where = {"host": served.host, "port": served.port}
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        controller = {"runtime_env": {"env_vars": PROXY_START}}
        serve.start(
            proxy_location="HeadOnly", http_options=where, logging_config=LOGGING, controller_options=controller
        )
        is_idle = False
        try:
            _start(deployment, signals)
            count = deployment.settings.replicas
            announce(f"\nserving {model} at http://{served.host}:{served.port}/v1, replicas: {count}")
            is_idle = _wait(deployment, signals, announce)
        finally:
            if address is not None or is_idle:
                _end(address)  # else all ends at once, with the Ray that was started here


def _signals() -> queue.SimpleQueue[int]:
    """After Ray has set its own handlers."""
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (*STOP, signal.SIGHUP):
        signal.signal(number, lambda arrived_number, _frame: arrived.put(arrived_number))
    return arrived


def _require_free(address: str | None) -> None:
    if address is not None:
        taken = {GATEWAY, REPLICAS} & set(serve.status().applications)
        if taken:
            raise InputError(f"the cluster at {address} has {sorted(taken)[0]} already: stop it first (serve shutdown)")


def _start(deployment: Deployment, signals: queue.SimpleQueue[int]) -> None:
    """Raises with the first replica's reason if they do not start, or after the time for it."""
    replicas = _begin(serve.run, replicas_of(deployment), name=REPLICAS, route_prefix=None)
    _until(replicas, deployment.settings.deploy_seconds, signals)
    gateway = _begin(serve.run, gateway_of(deployment), name=GATEWAY, route_prefix="/")
    _until(gateway, deployment.settings.deploy_seconds, signals)


def _begin(work: Callable[..., object], *given: Any, **named: Any) -> Future[object]:
    """In a thread that is not waited for when the command ends, because Ray's calls may wait for ever."""
    future: Future[object] = Future()

    def do() -> None:
        try:
            future.set_result(work(*given, **named))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future


def _until(work: Future[object], seconds: float, signals: queue.SimpleQueue[int]) -> None:
    waited = 0.0
    while not work.done():
        if waited > seconds:
            raise NotDeployed(f"the replicas were not ready after {seconds:g} s: {_why()}; raise --deploy-seconds")
        waited += LOOK_SECONDS
        if _arrived(signals) in STOP:
            raise KeyboardInterrupt
    if (error := work.exception()) is not None:
        raise NotDeployed(_why() or str(error).strip().splitlines()[-1]) from None


def _why() -> str:
    """What Ray reports of the replicas: our own error if it is one, else the last line."""
    application = serve.status().applications.get(REPLICAS)
    texts = [one.message for one in application.deployments.values()] if application else []
    text = "\n".join(texts).strip()
    if found := FAILURE.findall(text):
        return str(found[-1]).strip()
    return text.splitlines()[-1] if text else ""


def _arrived(signals: queue.SimpleQueue[int]) -> int:
    try:
        return signals.get(timeout=LOOK_SECONDS)
    except queue.Empty:
        return 0


def _wait(deployment: Deployment, signals: queue.SimpleQueue[int], announce: Announce) -> bool:
    """Until a signal, and until no call is left. False: a second signal came before."""
    while (number := _arrived(signals)) not in STOP:
        if number == signal.SIGHUP:
            announce("the replicas start again, one after another")
            again = _begin(serve.run, replicas_of(deployment), name=REPLICAS, route_prefix=None)
            try:
                _until(again, deployment.settings.deploy_seconds, signals)
                announce("all replicas have started again")
            except NotDeployed as error:
                announce(f"not all replicas have started again: {error}")
    announce("draining: calls in progress may end")
    seconds = deployment.served.drain_seconds
    draining = serve.get_app_handle(GATEWAY).drain.remote(seconds)
    ended = _begin(draining.result, timeout_s=seconds + LOOK_SECONDS)
    while not ended.done():
        if _arrived(signals) in STOP:
            return False
    return True


def _end(address: str | None) -> None:
    """Of a Ray that was started here, all ends with it."""
    for application in (GATEWAY, REPLICAS):
        serve.delete(application)
    if address is None:
        serve.shutdown()
