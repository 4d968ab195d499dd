"""This process as a driver of Ray: what it starts there ends with it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray as ray

from quire.core.errors import InputError

CONNECT_SECONDS = 5.0
LOCAL, HERE = "local", "auto"
"""A Ray that is started for this process; the one that runs on this machine."""


def join_ray(address: str, **more: Any) -> None:
    """`more`: of a Ray that is started here. Raises InputError."""
    _require_reachable(address)
    try:
        with _same_signals():
            ray.init(address=address, logging_level="WARNING", log_to_driver=True, **more)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "on this machine" if address in (LOCAL, HERE) else f"at {address}"
        raise InputError(f"Ray cannot be used {where}: {_reason(error, address)}") from None


def _reason(error: BaseException, address: str) -> str:
    text = f"{error}\n{error.__cause__ or ''}"
    if "InvalidAuthToken" in text:
        return "its token is asked for: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH if the token is elsewhere"
    if address == HERE and "any running Ray instance" in text:
        return "none runs: start one with ray start --head, or set RAY_ADDRESS"
    return text.strip().splitlines()[0]


def _require_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # no address with a port
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"no Ray cluster answers at {address}: {why}; check --ray-address or RAY_ADDRESS") from None


@contextmanager
def _same_signals() -> Iterator[None]:
    """Ray handles SIGTERM, which may be another's here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
