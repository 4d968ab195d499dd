"""How the ranks of a model on several processes are started."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import InputError
from quire.options.flags import option, read_texts

LOCAL, ENVIRONMENT, RAY = LAUNCHES = ("local", "environment", "ray")
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class RankOptions:
    launch: str = option(
        LOCAL,
        "device",
        "how ranks are started: local, as processes of this machine; environment, by torchrun or Slurm, each with "
        "python -m quire.rank; ray, as actors of the Ray cluster of RAY_ADDRESS or of this machine (default local)",
        choices=LAUNCHES,
    )
    start_seconds: float = option(
        START_SECONDS,
        "device",
        f"seconds after which a rank that has no place on Ray, has not connected, or is silent while it starts, is "
        f"given up (default {START_SECONDS:g})",
        parse=float,
        metavar="S",
    )

    def __post_init__(self) -> None:
        read_texts(self)
        if not self.start_seconds > 0:
            raise InputError(f"--start-seconds is {self.start_seconds:g}: give more than 0")
