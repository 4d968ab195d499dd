"""What does not run on several ranks yet: refused by name, before anything is planned."""

from __future__ import annotations

from quire.core.errors import InputError
from quire.options.run import RunOptions


def require_ranks(tensor_parallel: int, pipeline_parallel: int, options: RunOptions) -> None:
    ranks = tensor_parallel * pipeline_parallel
    if ranks == 1:
        return
    for flag, what in _refused(pipeline_parallel, options):
        raise InputError(f"{what} does not run on {ranks} ranks yet: leave {flag} out, or run the model on one")


def _refused(stages: int, options: RunOptions) -> list[tuple[str, str]]:
    """(option, what it asks for) of everything that was asked for and is refused."""
    tiers = options.tiers
    asked = [
        (options.draft_model is not None, "--draft-model", "a draft model"),
        (options.deterministic, "--deterministic", "a result that does not depend on batching"),
        (tiers.disk is not None, "--disk", "a cache of prefixes on disk"),
        (tiers.remote is not None, "--remote", "a cache of prefixes on a server"),
        (bool(tiers.connectors), "--connector", "a cache of prefixes of your own"),
        (tiers.peer is not None, "--role", "hand-over"),
        (bool(tiers.host_bytes) and options.device != "cpu", "--host-memory", "a cache in host memory beside a GPU"),
        (bool(tiers.host_bytes) and stages > 1, "--host-memory", "a cache in host memory beside pipeline stages"),
    ]
    return [(flag, what) for is_asked, flag, what in asked if is_asked]
