"""The process of a rank other than 0: it has no engine, and runs the steps that rank 0 sends.

setup ──▶ what it has, for rank 0 to compare ──▶ its share of the weights, placed ──▶ steps, each confirmed

It ends when rank 0 does (its end of the pipe closes), and ignores signals.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from quire.build.launch import CONTROL, RankSetup, file_store, life_of_store, open_store
from quire.build.machine import let_threads_sleep
from quire.build.model import meter_of, place_model, read_weights
from quire.build.ranks import for_this_rank, rank_facts
from quire.core.errors import InputError, QuireError
from quire.plan.file import decode
from quire.plan.plan import Plan
from quire.ranks.channel import LOST_RANK_0, Channel, Inbox, Json, Kind, Message
from quire.ranks.environment import connect, place_of
from quire.ranks.memory import FollowedMemory
from quire.ranks.message import decode as decode_step
from quire.ranks.tables import Tables, empty_tables
from quire.worker.ranks.interfaces import loopback
from quire.worker.ranks.share import Share, shares_of

if TYPE_CHECKING:
    from quire.worker.steps.runner import TorchRunner

ALIVE_SECONDS = 1.0
"""How often a rank that starts says that it is alive."""
CONFIRM_SECONDS = 0.05
"""If no step comes for this long, those that are launched are waited for and confirmed."""
MOST_UNCONFIRMED = 2
RECORD_THREADS = 3
"""As many records as rank 0 reads and writes at a time."""


@dataclass(eq=False)
class Rank:
    """What runs steps."""

    runner: TorchRunner
    tables: Tables
    memory: FollowedMemory | None
    """Of cached prefixes."""
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(RECORD_THREADS))
    """Read and write records in the rank's store."""

    def await_others(self, inbox: Inbox, channel: Channel) -> None:
        """Until all are ready. Rank 0 may try its tiers before."""
        while (message := inbox.take()) is not None and message.kind is Kind.RECORD:
            self._follow_order(message, channel)

    def run(self, inbox: Inbox, channel: Channel) -> NoReturn:
        """Launches steps as they come, so that a device always has the next one, and confirms those that are done."""
        launched: deque[int] = deque()
        while True:
            message = inbox.take(CONFIRM_SECONDS if launched else None)
            if message is not None and message.kind is Kind.RECORD:
                self._follow_order(message, channel)
                message = None
            elif message is not None:
                launched.append(self._launch(message))
            while launched and (message is None or len(launched) > MOST_UNCONFIRMED):
                self.runner.collect()
                channel.send_done(launched.popleft())

    def _follow_order(self, message: Message, channel: Channel) -> None:
        """In a thread, after the copies of all steps before."""
        memory, order = self.memory, message.json()
        assert memory is not None, "orders are about records"
        channel.send_json({"taken": order["number"]}, Kind.RECORD)
        self.threads.submit(lambda: channel.send_json(memory.follow_order(order), Kind.RECORD))

    def _launch(self, message: Message) -> int:
        assert message.kind is Kind.STEP, "after the start there are steps alone"
        decoded = decode_step(message.data, self.tables)
        if (own := self.runner.recording(decoded.step)) != decoded.recording:
            raise InputError(f"it would play recording {own}, rank 0 plays {decoded.recording}: use GPUs of one type")
        if self.memory is not None:
            self.memory.expect(decoded.loads)
        self.runner.launch(decoded.step)
        return decoded.step.number


def main(descriptor: int | None) -> None:
    """`descriptor`: of the pipe to rank 0; None: the environment says where it is."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup: RankSetup = pickle.load(sys.stdin.buffer)
    if descriptor is None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        follow(setup, None if descriptor is None else Channel(socket.socket(fileno=descriptor)))
    except QuireError as error:
        _end(str(error), error.exit_code)
    except Exception as error:
        traceback.print_exc()
        _end(repr(error), 1)


def follow(setup: RankSetup, channel: Channel | None = None) -> NoReturn:
    """Makes this process a rank, until rank 0 ends. `channel`: to rank 0; None: the environment says where it is. What
    is raised, rank 0 has been told."""
    store = None
    if channel is None:
        place, seconds = place_of(), setup.options.ranks.start_seconds
        network = open_store(place, seconds)
        address = setup.address.text() if setup.address is not None else ""
        channel, life = connect(lambda: address or network.get(CONTROL).decode(), place.rank, seconds)
        store = life_of_store(network, life)
    try:
        _follow(setup, channel, store)
    except Exception as error:
        why = str(error) if isinstance(error, QuireError) else repr(error)
        with contextlib.suppress(OSError):
            channel.send_json({"failed": _one_line(why)})
        raise


def _end_with_parent() -> None:
    """The process that has started this one closes its end of the pipe when it ends."""
    sys.stdin.buffer.read()
    os._exit(LOST_RANK_0)


def _end(why: str, exit_code: int) -> None:
    print(f"quire: a rank ends: {_one_line(why)}", file=sys.stderr, flush=True)
    os._exit(exit_code)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _follow(setup: RankSetup, channel: Channel, store: Any) -> NoReturn:
    inbox, options = Inbox(channel), setup.options
    if options.device == "cpu":
        let_threads_sleep()
    has_started = threading.Event()
    threading.Thread(target=_say_alive, args=(channel, has_started), daemon=True).start()
    plan = decode(setup.plan or _expect(inbox)["plan"])
    share = setup.share or shares_of(plan)[place_of().rank]
    channel.send_json(rank_facts(setup.folder, plan, options))
    if "refused" in (answer := _expect(inbox)):
        raise InputError(answer["refused"])
    rank, measured = _build(setup, plan, share, store)
    channel.send_json({"ready": measured})
    rank.await_others(inbox, channel)
    has_started.set()
    rank.run(inbox, channel)


def _expect(inbox: Inbox) -> Json:
    message = inbox.take()
    assert message is not None, "it is waited for"
    return message.json()


def _say_alive(channel: Channel, has_started: threading.Event) -> None:
    with contextlib.suppress(OSError):  # rank 0 is gone, and so is this process
        while not has_started.wait(ALIVE_SECONDS):
            channel.send_json({"progress": True})


def _build(setup: RankSetup, plan: Plan, share: Share, store: Any) -> tuple[Rank, list[str]]:
    """`store`: where processes of several machines meet."""
    from quire.build.runner import make_runner, record_steps
    from quire.build.tiers import follow
    from quire.worker.ranks.joining import join, use_gpu

    options = for_this_rank(setup.options, len(plan.ranks))
    is_local = setup.meeting is not None
    if options.device != "cpu":
        use_gpu(share.number if is_local else place_of().local_rank)
    store = store if setup.meeting is None else file_store(setup.meeting, len(plan.ranks))
    interface = loopback() if is_local else ""
    collective, line = join(share, options.device, store, interface, options.ranks.start_seconds)
    meter = meter_of(options, share)
    weights = read_weights(setup.folder, plan, options, meter, share=share, collective=collective, line=line)
    placed = place_model(plan, weights, options, meter)
    memory, staging = (None, None) if options.tiers.is_empty else follow(plan, placed.arena, options.tiers, share.rank)
    runner, tables = make_runner(plan, placed, staging=staging), empty_tables(plan)
    report = record_steps(runner, placed, tables)
    return Rank(runner, tables, memory), list(report.lines())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
