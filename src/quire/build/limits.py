"""What does not run on several ranks yet: refused by name, before anything is planned."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InputError
from quire.models.quantisation import section_of
from quire.options.extras import require_ray
from quire.options.ranks import RAY
from quire.options.run import RunOptions
from quire.plan.settings import Settings


def require_ranks(tensor_parallel: int, pipeline_parallel: int, options: RunOptions) -> None:
    ranks = tensor_parallel * pipeline_parallel
    if ranks == 1:
        return
    if options.ranks.launch == RAY:
        require_ray("--launch ray")
    for flag, what in _refused(pipeline_parallel, options):
        raise InputError(f"{what} does not run on {ranks} ranks yet: leave {flag} out, or run the model on one")


def require_shared_weights(folder_config: Mapping[str, object], name: str, ranks: int) -> None:
    """Quantised checkpoints lie in codes and scales that are not cut yet."""
    if ranks > 1 and section_of(folder_config) is not None:
        raise InputError(
            f"{name} has quantised weights, which do not run on {ranks} ranks yet: choose a checkpoint that is not "
            "quantised, or run it on one"
        )


def require_shared_memory(settings: Settings) -> None:
    """Scales of keys and values are found by every rank of a stage alike; stages have layers of their own."""
    if settings.kv_dtype.is_quantised and settings.pipeline_parallel > 1:
        raise InputError(
            f"keys and values as {settings.kv_dtype.value} do not run on {settings.pipeline_parallel} stages yet: "
            "choose --kv-dtype bf16, or --pipeline-parallel 1"
        )


def _refused(stages: int, options: RunOptions) -> list[tuple[str, str]]:
    """(option, what it asks for) of everything that was asked for and is refused."""
    tiers = options.tiers
    asked = [
        (options.draft_model is not None, "--draft-model", "a draft model"),
        (options.weights is not None, "--weights", "a model whose weights are quantised"),
        (options.deterministic, "--deterministic", "a result that does not depend on batching"),
        (tiers.remote is not None, "--remote", "a cache of prefixes on a server"),
        (bool(tiers.connectors), "--connector", "a cache of prefixes of your own"),
        (tiers.peer is not None, "--role", "hand-over"),
        (bool(tiers.host_bytes) and options.device != "cpu", "--host-memory", "a cache in host memory of a GPU"),
        (tiers.disk is not None and options.device != "cpu", "--disk", "a cache on disk for a GPU"),
        (tiers.disk is not None and stages > 1, "--disk", "a cache on disk for pipeline stages"),
        (bool(tiers.host_bytes) and stages > 1, "--host-memory", "a cache in host memory of pipeline stages"),
    ]
    return [(flag, what) for is_asked, flag, what in asked if is_asked]
