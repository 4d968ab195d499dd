"""Errors of the hub's client, each as one line with what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from quire.core.errors import QuireError
from quire.fetch.errors import HubError
from quire.fetch.hub_names import HubId

NETWORK_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base of every error of the client's HTTP library, whose name depends on the client's version."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ADVICE = {
    401: "the token is not accepted, correct HF_TOKEN or run hf auth login",
    403: "give a token with read access in HF_TOKEN",
    404: "a file that it lists is missing, try again later",
    429: "too many requests, wait some minutes or set HF_TOKEN",
}
"""By status."""


class HubAway(HubError):
    """The hub cannot be asked now: a copy in the cache may do."""


@contextmanager
def hub_errors(hub_id: HubId) -> Iterator[None]:
    """Turns every error of the client into a `HubError`."""
    try:
        yield
    except QuireError:
        raise
    except HfHubHTTPError as error:
        raise _refused(hub_id, error) from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, NETWORK_ERROR) as error:
        raise _unreachable(error) from None
    except OSError as error:
        raise _failed(hub_id, error) from None
    except Exception as error:  # of a server that speaks otherwise, or of the client's own extensions
        why = f"{type(error).__name__}: {_first_line(error)}"
        raise HubError(f"{endpoint()} does not answer as a hub of models does ({why}): check HF_ENDPOINT") from None


def endpoint() -> str:
    return constants.ENDPOINT


def _refused(hub_id: HubId, error: HfHubHTTPError) -> HubError:
    repository = hub_id.repository
    if isinstance(error, GatedRepoError):
        known = "this token's account has no access" if get_token() else "no token is set"
        where = f"request access at {endpoint()}/{repository}"
        return HubError(f"{repository} is gated, and {known}: {where}, then set HF_TOKEN or run hf auth login")
    if isinstance(error, RepositoryNotFoundError):
        own = "check the name, or set HF_TOKEN if it is private"
        return HubError(f"{repository}: no such folder here, and {endpoint()} shows no such repository: {own}")
    if isinstance(error, RevisionNotFoundError):
        return HubError(f"{repository} has no revision {hub_id.revision}: give a branch, a tag or a commit")
    status = error.response.status_code
    if status >= 500:
        return HubAway(f"{endpoint()} answers {status}: try again later")
    return HubError(f"{endpoint()} answers {status} for {repository}: {ADVICE.get(status, 'check HF_ENDPOINT')}")


def _failed(hub_id: HubId, error: OSError) -> HubError:
    cache = constants.HF_HUB_CACHE
    if isinstance(error, FileMetadataError):
        return HubError(f"{endpoint()} does not answer as a hub of models does: check HF_ENDPOINT and the proxy")
    if error.errno in FULL:
        return HubError(f"{os.strerror(error.errno or 0)} in {cache}: free some space there, or set HF_HOME")
    if error.errno is not None:
        return HubError(f"cannot use {cache}: {os.strerror(error.errno)}; set HF_HOME to another folder")
    why = _first_line(error)
    return HubError(f"a download of {hub_id.repository} failed ({why}): nothing of that file is kept, try again")


def _unreachable(error: BaseException) -> HubAway:
    if constants.is_offline_mode():
        return HubAway("HF_HUB_OFFLINE is set: unset it to download")
    while error.__cause__ is not None:
        error = error.__cause__
    why = _first_line(error)
    return HubAway(f"{endpoint()} cannot be reached ({why}): check the network, HF_ENDPOINT and the proxy")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
