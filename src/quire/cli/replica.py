"""A replica of `quire deploy`: `quire serve` with options that its parent has parsed (deploy/process.py)."""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import sys
import threading
import time
from types import MappingProxyType

from quire.core.errors import QuireError

SECOND_SIGNAL_SECONDS = 0.2


def main() -> int:
    parsed = argparse.Namespace(**pickle.load(sys.stdin.buffer))
    parsed.page_tokens = MappingProxyType(parsed.page_tokens)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from quire.cli.serve import serve

    try:
        serve(parsed)
    except QuireError as error:
        print(f"quire: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _end_with_parent() -> None:
    """The parent keeps the pipe open as long as it lives. The second signal ends the server at once. Not a buffered
    read: its lock would disturb the end of the process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECOND_SIGNAL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
