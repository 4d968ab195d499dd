"""Compiles grammars in a separate process first: some schemas of a few lines take almost for ever to compile.

    Trial ── the tokenizer, then grammars ──▶ the process, which ends if one of them takes too long
          ◀── what is wrong with each, or "" ──

The engine compiles accepted grammars once more, in about the same time.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

import tokenizers

from quire.core.child import python
from quire.core.errors import InputError
from quire.core.sampling import Grammar
from quire.text.grammar import Grammars
from quire.text.tokenizer import Tokenizer

TRIAL_SECONDS = 2.0
"""Limit of CPU time."""
STILL_SECONDS = 30.0
"""Limit by the clock, including the start of the process, if it hangs or gets no CPU time."""


class Trial:
    """For one thread."""

    def __init__(self, tokenizer: Tokenizer, seconds: float = TRIAL_SECONDS) -> None:
        self._tokenizer, self._seconds = tokenizer, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def compile(self, grammar: Grammar) -> None:
        """Raises if the grammar cannot be used. If the process ends for another reason than its time limit, a new one
        tries once more; if that ends as well, it is a bug of Quire and not the grammar's."""
        try:
            wrong = self._tried(grammar)
        except _Ended:
            wrong = self._tried(grammar)
        if wrong:
            raise InputError(wrong)

    def _tried(self, grammar: Grammar) -> str:
        """What is wrong with the grammar; empty if nothing is."""
        try:
            connection = self._connection or self._start()
            connection.send(grammar)
            if connection.poll(STILL_SECONDS):
                return str(connection.recv())
            ending = f"stood still for {STILL_SECONDS:g} s"
        except (EOFError, OSError) as error:
            code = self.close()
            if code == -signal.SIGPROF:
                return f"the grammar was not compiled after {self._seconds:g} s of computing: simplify it"
            ending = f"ended with {code} ({type(error).__name__})"
        self.close()
        raise _Ended(f"the process that tries grammars {ending}")

    def _start(self) -> Connection:
        """Its output is discarded: a traceback would contain a client's input."""
        nothing = subprocess.DEVNULL
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            command = python("-m", "quire.serve.trial", str(theirs.fileno()))
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=nothing, stderr=nothing)
        own = self._tokenizer
        self._connection.send((own.inner.to_str(), own.eos_token_ids, own.name, self._seconds))
        return self._connection

    def close(self) -> int | None:
        """Kills the process if it runs, and returns its exit code, if any. The next grammar starts a new one."""
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        process.kill()
        return process.wait()


class _Ended(Exception):
    """The process ended without an answer, and not because of its time limit."""


def main(connection: Connection) -> None:
    """Ends when the other side closes the pipe, or by a signal when a grammar exceeds its time."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    text, eos_token_ids, name, seconds = connection.recv()
    grammars = Grammars(Tokenizer(tokenizers.Tokenizer.from_str(text), eos_token_ids, name=name))
    with contextlib.suppress(EOFError, OSError):
        while True:
            grammar = connection.recv()
            signal.setitimer(signal.ITIMER_PROF, seconds)
            wrong = _wrong(grammars, grammar)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(wrong)


def _wrong(grammars: Grammars, grammar: Grammar) -> str:
    try:
        grammars.compile(grammar)
    except InputError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
