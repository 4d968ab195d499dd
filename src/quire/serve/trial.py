"""Grammars are tried in a process of their own: some schemas of a few lines take for ever to compile.

    Trial ── the tokenizer, then grammars ──▶ the process, which ends if one of them takes it too long
          ◀── what is wrong with each, or "" ──

The engine compiles what has passed here once more, in about the same time.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

import tokenizers

from quire.core.errors import InputError
from quire.core.sampling import Grammar
from quire.text.grammar import Grammars
from quire.text.tokenizer import Tokenizer

TRIAL_SECONDS = 2.0
"""Of computing."""


class Trial:
    """For one thread."""

    def __init__(self, tokenizer: Tokenizer, seconds: float = TRIAL_SECONDS) -> None:
        self._tokenizer, self._seconds = tokenizer, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def compile(self, grammar: Grammar) -> None:
        """Raises what keeps it from being used."""
        connection = self._connection or self._start()
        try:
            connection.send(grammar)
            wrong = connection.recv()
        except (EOFError, OSError):
            self.close()
            wrong = f"the grammar was not compiled after {self._seconds:g} s of computing: simplify it"
        if wrong:
            raise InputError(wrong)

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "quire.serve.trial", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        self._connection.send((self._tokenizer.inner.to_str(), self._tokenizer.eos_token_ids, self._seconds))
        return self._connection

    def close(self) -> None:
        """The next grammar finds a new process."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None


def main(connection: Connection) -> None:
    """Ends with the one that listens, or by a signal that comes when a grammar's time is over."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    text, eos_token_ids, seconds = connection.recv()
    grammars = Grammars(Tokenizer(tokenizers.Tokenizer.from_str(text), eos_token_ids))
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
