"""Secrets in files: read when they are needed, so that no option and no process list contains them."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from quire.core.errors import InputError

LEAST_SECRET_BYTES = 16
_LOG = logging.getLogger("quire.tiers")


def read_secret(path: Path, option: str) -> bytes:
    """Without the white space around it. One that every user of the machine can read is used, with a warning: volumes
    of containers often have such modes."""
    try:
        secret, mode = path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise InputError(f"cannot read {option} {path}: {error.strerror}") from None
    if len(secret) < LEAST_SECRET_BYTES:
        raise InputError(f"{option} {path} has {len(secret)} bytes: give at least {LEAST_SECRET_BYTES} random ones")
    if mode & stat.S_IROTH:
        _LOG.warning("%s %s can be read by every user (mode %o): chmod 600 it", option, path, stat.S_IMODE(mode))
    return secret
