"""Connects the processes of a model with each other, once all of them have started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from quire.core.errors import InputError
from quire.worker.model.collective import Collective, Line
from quire.worker.ranks.distributed import join_group
from quire.worker.ranks.interfaces import INTERFACE
from quire.worker.ranks.share import Share

NEVER_SECONDS = 7 * 24 * 3600.0
"""No collective reports that a rank is gone: rank 0 watches all ranks (`quire.ranks.group`) and ends them."""


def join(share: Share, device: str, store: Any, interface: str, seconds: float) -> tuple[Collective, Line]:
    """`store`: where the processes find each other. `interface`: on which gloo listens, unless the environment names
    one; empty: that of the host's name. `seconds`: for all to connect."""
    if distributed.is_initialized():
        raise InputError("torch.distributed is in use in this process: run the model in a process of its own")
    with _on(interface):
        try:
            distributed.init_process_group(
                "gloo",
                store=store,
                rank=share.number,
                world_size=share.ranks * share.stages,
                timeout=timedelta(seconds=seconds),
            )
            return join_group(share, torch.device(device), NEVER_SECONDS)
        except RuntimeError as error:
            where = os.environ.get(INTERFACE, "by the host's name")
            text = str(error).splitlines()[0]
            raise InputError(f"ranks cannot connect ({INTERFACE}: {where}): {text}") from error


def file_store(path: Path, processes: int) -> Any:
    """Where the processes of one machine find each other."""
    return distributed.FileStore(str(path), processes)  # type: ignore[attr-defined]


def network_store(host: str, port: int, serves: bool, seconds: float) -> Any:
    """Where processes of several machines do. `serves`: this process keeps it, at that address alone: by itself torch
    would listen at all addresses of the machine."""
    more: dict[str, Any] = {}
    try:
        if serves:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            more = {"master_listen_fd": socket.create_server((host, port), family=family).detach()}
        return distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=serves, timeout=timedelta(seconds=seconds), wait_for_workers=False, **more
        )
    except (RuntimeError, OSError) as error:
        what = "is taken, or no port of this machine" if serves else f"did not answer within {seconds:g} s"
        text = str(error).splitlines()[0]
        raise InputError(f"MASTER_ADDR:MASTER_PORT {host}:{port} {what}: {text}") from error


def part_of_store(store: Any, name: str) -> Any:
    """For one life of the group: nothing of an earlier one is found there."""
    return distributed.PrefixStore(name, store)  # type: ignore[attr-defined]


def leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def use_gpu(number: int) -> None:
    """Of those that this process sees: a rank has one of its own."""
    seen = torch.cuda.device_count()
    if number >= seen:
        raise InputError(
            f"rank {number} of this machine needs a GPU of its own, and {seen} are seen: start fewer ranks"
        )
    torch.cuda.set_device(number)


@contextmanager
def _on(interface: str) -> Iterator[None]:
    if INTERFACE in os.environ or not interface:
        yield
        return
    os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[INTERFACE]
