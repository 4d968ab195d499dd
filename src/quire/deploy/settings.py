"""What an operator may choose about replicas, in addition to how each of them serves."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.core.errors import InputError
from quire.options.flags import option
from quire.options.texts import parse_tokens, positive

_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Replicas:
    fewest: int
    most: int

    @property
    def scales(self) -> bool:
        return self.most > self.fewest

    def __str__(self) -> str:
        return f"{self.fewest} to {self.most}" if self.scales else str(self.fewest)


def replicas(text: str) -> Replicas:
    """`4`, or `1..4`."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is no number of replicas: write 4, or 1..4 to scale with load")
    fewest = positive(match.group(1))
    most = positive(match.group(2) or match.group(1))
    if most < fewest:
        raise InputError(f"{text!r} has the greater number first: write {most}..{fewest}")
    return Replicas(fewest, most)


@dataclass(frozen=True, slots=True)
class DeploySettings:
    replicas: Replicas = option(
        Replicas(1, 1),
        "replicas",
        "number of replicas, or FEWEST..MOST to scale with load (default 1)",
        parse=replicas,
        metavar="N|N..N",
    )
    request_tokens: int = option(
        8192,
        "replicas",
        "expected length of a request in tokens, prompt and output; a replica is added when each has as many requests "
        "as its plan runs at this length (default 8192, at most the longest request)",
        parse=parse_tokens,
        metavar="N",
    )
    upscale_seconds: float = option(
        30.0,
        "replicas",
        "time that load must exceed the replicas before one is added (default 30)",
        parse=float,
        metavar="S",
    )
    downscale_seconds: float = option(
        600.0,
        "replicas",
        "time that load must need fewer replicas before one ends (default 600)",
        parse=float,
        metavar="S",
    )
    ray_address: str | None = option(
        None,
        "replicas",
        "address of a Ray cluster, or auto for the one on this machine (default: RAY_ADDRESS, else a Ray of its own)",
        metavar="ADDRESS",
    )
    deploy_seconds: float = option(
        1800.0, "replicas", "time limit for all replicas to be ready (default 1800)", parse=float, metavar="S"
    )

    def __post_init__(self) -> None:
        for name in ("upscale_seconds", "downscale_seconds", "deploy_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} is {getattr(self, name):g}: give 0 or more")
