"""Serves a model as one of several ranks: start the same command for each, with torchrun, Slurm or four variables.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which rank this is and where rank 0 is found. Rank 0 is `quire serve`,
with all of its options; the others run their share of the model, and come back when rank 0 starts its engine again.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
from dataclasses import replace
from types import FrameType

from quire.build.launch import RankSetup, follower_process, of_a_rank
from quire.build.machine import resolve_device, torch_elsewhere_has_cuda
from quire.cli import serve
from quire.cli.configuration import complete
from quire.cli.fetch import Bar
from quire.cli.flags import run_options
from quire.fetch.find import converted, downloaded, find_source
from quire.options.ranks import ENVIRONMENT
from quire.ranks.channel import LOST_RANK_0
from quire.ranks.environment import place_of

add_arguments = serve.add_arguments


def run(typed: argparse.Namespace) -> None:
    typed.launch = ENVIRONMENT
    if place_of().rank == 0:
        serve.run(typed)
        return
    parsed = complete(serve.add_all, typed)
    options = resolve_device(run_options(parsed), torch_elsewhere_has_cuda)
    here = downloaded(find_source(parsed.model, Bar()), Bar())
    folder = converted(here, Bar(), options.weights)
    _follow(RankSetup(folder, None, of_a_rank(replace(options, weights=None)), None, None))


def _follow(setup: RankSetup) -> None:
    """A process for each life of rank 0's engine."""
    while True:
        with follower_process([], setup) as process:
            restore = signal.signal(signal.SIGTERM, lambda number, frame: _end(process, number, frame))
            code = process.wait()
            signal.signal(signal.SIGTERM, restore)
        if code == 0:
            return
        if code != LOST_RANK_0:
            raise SystemExit(code if code > 0 else 1)  # it has said why


def _end(process: subprocess.Popen[bytes], number: int, _frame: FrameType | None) -> None:
    process.kill()
    raise SystemExit(128 + number)
