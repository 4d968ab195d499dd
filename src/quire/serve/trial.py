"""Compiles grammars in a separate process first: some schemas of a few lines take almost for ever to compile.

    Trial ── the tokenizer, then grammars ──▶ the process, which ends if one of them takes too long or too much memory
          ◀── what is wrong with each, or "" ──

The engine compiles accepted grammars once more, in about the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

import tokenizers

from quire.core.errors import InputError
from quire.core.sampling import Grammar
from quire.core.units import GIB, format_bytes
from quire.options.child import python
from quire.text.grammar import Grammars
from quire.text.tokenizer import Tokenizer

TRIAL_SECONDS = 2.0
"""Limit of CPU time."""
TRIAL_BYTES = 2 * GIB
"""Limit of the process's private memory, with the tokenizer. Grammars that people use take a tenth of it."""
MOST_KNOWN = 4096
"""Grammars that are not tried again."""
STILL_SECONDS = 30.0
"""Limit by the clock, including the start of the process, if it hangs or gets no CPU time."""


class Trial:
    """For one thread."""

    def __init__(self, tokenizer: Tokenizer, seconds: float = TRIAL_SECONDS, most_bytes: int = TRIAL_BYTES) -> None:
        self._tokenizer, self._seconds, self._most_bytes = tokenizer, seconds, most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._known: dict[bytes, None] = {}
        """Digests of the grammars that compiled and were asked for last, the latest one at the end."""

    def compile(self, grammar: Grammar) -> None:
        """Raises if the grammar cannot be used. One that is known is not tried again: agents send the same tools with
        every call."""
        digest = hashlib.sha256(f"{grammar.sort.value}:{grammar.text}".encode(errors="surrogatepass")).digest()
        if digest not in self._known:
            self._compile(grammar)
        self._known.pop(digest, None)
        self._known[digest] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _compile(self, grammar: Grammar) -> None:
        """If the process ends for another reason than its time limit, a new one
        tries once more: earlier grammars may have taken its memory. If that ends as well, and not by its memory limit,
        it is a bug of Quire and not the grammar's."""
        try:
            wrong = self._tried(grammar)
        except _Ended:
            try:
                wrong = self._tried(grammar)
            except _OutOfMemory as error:
                wrong = str(error)
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
            if code == -signal.SIGABRT:
                most = format_bytes(self._most_bytes)
                raise _OutOfMemory(f"the grammar takes more than {most} to compile: simplify it") from None
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
        limits = self._seconds, self._most_bytes
        self._connection.send((own.inner.to_str(), own.eos_token_ids, own.name, *limits))
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


class _OutOfMemory(_Ended):
    """It ended because of its memory limit."""


def main(connection: Connection) -> None:
    """Ends when the other side closes the pipe, or by a signal when a grammar exceeds its time or memory. Memory that
    cannot be had aborts it; a dump of it would contain a client's input."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    text, eos_token_ids, name, seconds, most_bytes = connection.recv()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
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
    except MemoryError:
        os.abort()  # as where the compiler itself gets none
    return ""


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
