"""The environment in which the peer, vLLM, runs: its own folder, so that Quire's tests never see it.

    python bench/peer_environment.py    creates .venv-vllm if need be and prints the path of its python

vLLM's scheduler and block manager are Python and run without an accelerator. vLLM, torch and xgrammar are installed
without what they depend on, because that is CUDA; the packages that the imports need are named here instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".venv-vllm"
STAMP = FOLDER / ".complete"
ALONE = ("vllm==0.32.0", "torch==2.13.0", "xgrammar")
WITH_DEPENDENCIES = (
    # torch and xgrammar
    "apache-tvm-ffi",
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "numpy",
    "sympy",
    "typing-extensions",
    # vLLM's configuration, scheduler and requests
    "aiohttp",
    "cachetools",
    "cbor2",
    "cloudpickle",
    "einops",
    "fastapi",
    "llguidance",
    "msgspec",
    "openai",
    "openai-harmony",
    "packaging",
    "partial-json-parser",
    "pillow",
    "prometheus-client",
    "psutil",
    "py-cpuinfo",
    "pybase64",
    "pydantic",
    "pyzmq",
    "regex",
    "requests",
    "transformers",
    "urllib3",
    "uvloop",
)
CHECK = """
import os
os.environ["VLLM_TARGET_DEVICE"] = "cpu"
import torch
if torch.version.cuda is not None:
    raise SystemExit(f"torch {torch.__version__} is a CUDA build; point pip at a CPU build of it")
import vllm.v1.core.sched.scheduler
"""


def peer_python() -> Path:
    """The python that can import vLLM; the first call installs it, which takes minutes."""
    python = FOLDER / "bin" / "python"
    wanted = "\n".join((*ALONE, *WITH_DEPENDENCIES)) + "\n"
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return python
    _say(f"creating {FOLDER.name} with {ALONE[0]} and {ALONE[1]}, once; this takes a few minutes")
    shutil.rmtree(FOLDER, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(FOLDER))
    _install(python, "--no-deps", *ALONE)
    _install(python, *WITH_DEPENDENCIES)
    _say("checking that the scheduler imports")
    _run(str(python), "-c", CHECK)
    STAMP.write_text(wanted)
    _say(f"{FOLDER.name} is complete")
    return python


def _install(python: Path, *packages: str) -> None:
    names = [package for package in packages if not package.startswith("-")]
    _say(f"installing {', '.join(names)}")
    # pip ends with a list of vLLM's dependencies that are missing on purpose: shown only when it fails.
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        _say(done.stdout)
        raise SystemExit(f"{FOLDER.name} could not be made: {' '.join(command[:4])} … ended with {done.returncode}")


def _say(text: str) -> None:
    print(f"peer environment: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(peer_python())
