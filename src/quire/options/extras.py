"""Packages that a plain install does not include: which extra has them, and how to install it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec

from quire.core.errors import MissingPackage

PACKAGES = {
    "hub": ("huggingface_hub",),
    "torch": ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2", "llguidance"),
    "serve": ("fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"),
    "gpu": ("triton",),
    "tiers": ("redis",),
    "plot": ("matplotlib",),
    "events": ("msgpack", "zmq"),
    "otel": ("opentelemetry",),
    "top": ("rich",),
    "ray": ("ray", "aiohttp"),
}
"""By extra, as they are imported. The server's has all of torch's, which has all of the hub's."""
ON_GPU = {"torch": "gpu", "serve": "gpu,serve"}
"""Extras that include torch, and what to install for a GPU instead: any torch from 2.11 on, not the version of the
tests."""


OLDEST_RAY = (2, 60)


def require_ray(who: str) -> None:
    """Without importing it, which takes seconds."""
    lacking = [name for name in PACKAGES["ray"] if find_spec(name) is None]
    if lacking:
        raise MissingPackage(f"{who} needs {lacking[0]}: {how_to_install('ray')}")
    found = version("ray")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise MissingPackage(f"{who} needs Ray {oldest} or newer, and {found} is here: {how_to_install('ray')}")


def how_to_install(extra: str) -> str:
    """The same words as in README.md."""
    constraint, on_gpu = "", ""
    if extra in ON_GPU:
        constraint, on_gpu = "-c constraints.txt ", f" (for a GPU: pip install '.[{ON_GPU[extra]}]')"
    return f"install it with pip install {constraint}'.[{extra}]' in Quire's checkout{on_gpu}"


@contextmanager
def naming_extras(who: str) -> Iterator[None]:
    """Reports a missing package with the extra that has it; any other error is passed on."""
    try:
        yield
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        extras = [extra for extra, packages in PACKAGES.items() if lacking in packages]
        if not extras:
            raise
        extra = "serve" if who == "serve" and extras == ["torch"] else extras[0]
        raise MissingPackage(f"{who} needs {lacking}: {how_to_install(extra)}") from error
