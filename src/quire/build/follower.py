"""The process of a rank other than 0: it has no engine, and runs the steps that rank 0 sends.

setup ──▶ what it has, for rank 0 to compare ──▶ its share of the weights, placed ──▶ steps, each confirmed

It ends when rank 0 does (its end of the pipe closes), and ignores signals.
"""

from __future__ import annotations

import pickle
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING

from quire.build.machine import let_threads_sleep
from quire.build.model import meter_of, place_model, read_weights
from quire.build.ranks import RankSetup, rank_facts
from quire.core.errors import QuireError
from quire.plan.file import decode
from quire.plan.plan import Plan
from quire.ranks.channel import Channel, Inbox, Kind
from quire.ranks.message import decode as decode_step
from quire.ranks.tables import Tables, empty_tables

if TYPE_CHECKING:
    from quire.worker.steps.runner import TorchRunner

ALIVE_SECONDS = 1.0
"""How often a rank that starts says that it is alive."""
CONFIRM_SECONDS = 0.05
"""If no step comes for this long, those that are launched are waited for and confirmed."""
MOST_UNCONFIRMED = 2


def main(descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup: RankSetup = pickle.load(sys.stdin.buffer)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        _follow(setup, channel)
    except QuireError as error:
        _fail(channel, str(error), error.exit_code)
    except Exception as error:
        traceback.print_exc()
        _fail(channel, repr(error), 1)


def _fail(channel: Channel, why: str, exit_code: int) -> None:
    channel.send_json({"failed": " ".join(why.split())})
    sys.exit(exit_code)


def _follow(setup: RankSetup, channel: Channel) -> None:
    inbox, plan = Inbox(channel), decode(setup.plan)
    if setup.options.device == "cpu":
        let_threads_sleep()
    channel.send_json(rank_facts(setup.folder, plan, setup.options))
    inbox.take()  # rank 0 has compared
    has_started = threading.Event()
    threading.Thread(target=_say_alive, args=(channel, has_started), daemon=True).start()
    runner, tables, measured = _build(setup, plan)
    has_started.set()
    channel.send_json({"ready": measured})
    _run(runner, inbox, channel, tables)


def _say_alive(channel: Channel, has_started: threading.Event) -> None:
    while not has_started.wait(ALIVE_SECONDS):
        channel.send_json({"progress": True})


def _build(setup: RankSetup, plan: Plan) -> tuple[TorchRunner, Tables, list[str]]:
    from quire.build.runner import make_runner
    from quire.worker.ranks.joining import file_store, join

    options, share = setup.options, setup.share
    store = file_store(setup.meeting, share)
    collective, line = join(share, options.device, store, True, options.ranks.start_seconds)
    meter = meter_of(options, share)
    weights = read_weights(setup.folder, plan, options, meter, share=share, collective=collective, line=line)
    placed = place_model(plan, weights, options, meter)
    runner, tables = make_runner(plan, placed), empty_tables(plan)
    return runner, tables, []


def _run(runner: TorchRunner, inbox: Inbox, channel: Channel, tables: Tables) -> None:
    """Launches steps as they come, so that a device always has the next one, and confirms those that are done."""
    launched: deque[int] = deque()
    while True:
        message = inbox.take(CONFIRM_SECONDS if launched else None)
        if message is not None:
            assert message.kind is Kind.STEP, "after the start there are steps alone"
            step = decode_step(message.data, tables).step
            runner.launch(step)
            launched.append(step.number)
        while launched and (message is None or len(launched) > MOST_UNCONFIRMED):
            runner.collect()
            channel.send_done(launched.popleft())


if __name__ == "__main__":
    main(int(sys.argv[1]))
