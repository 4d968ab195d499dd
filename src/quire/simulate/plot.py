"""`--plot`: how long requests waited, how evenly tokens came, and what filled the memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import InputError
from quire.core.units import GIB
from quire.options.extras import naming_extras
from quire.simulate.replay import Played
from quire.simulate.report import Floats

MOST_POINTS = 2000


def draw(runs: Mapping[str, Played], title: str, path: Path) -> None:
    with naming_extras("--plot"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplot_mosaic([["first", "between"], ["memory", "memory"]], figsize=(10, 7))
    for name, played in runs.items():
        recorder = played.recorder
        waits = recorder.first - recorder.arrived
        _curve(axes["first"], waits[~np.isnan(waits)], name)
        _curve(axes["between"], recorder.gaps[: recorder.gap_count], name)
    axes["first"].set(xlabel="seconds to first token", ylabel="share of requests", xscale="log", title=title)
    axes["between"].set(xlabel="seconds between tokens", ylabel="share of tokens", xscale="log")
    axes["first"].legend()
    _memory(axes["memory"], next(iter(runs.values())))
    for one in axes.values():
        one.grid(alpha=0.3)
        one.tick_params(axis="x", which="minor", labelbottom=False)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    pyplot.close(figure)


def _curve(axes: Any, values: Floats, name: str) -> None:
    """A cumulative distribution: further left is better."""
    if len(values):
        shares = np.linspace(0, 1, min(len(values), MOST_POINTS))
        axes.plot(np.quantile(values, shares), shares, label=name)


def _memory(axes: Any, played: Played) -> None:
    """One rank of the first run: what requests hold, and on top of it what only the cache keeps."""
    use = played.memory
    chosen = np.linspace(0, len(use.times) - 1, min(len(use.times), MOST_POINTS)).astype(np.int64)
    times = np.array(use.times)[chosen]
    layers, labels = [], []
    for who, word in enumerate(("held", "cached")):
        for place, (stage, kind) in enumerate(use.kinds):
            pages = np.array([use.samples[one][who, place] for one in chosen.tolist()])
            layers.append(pages * kind.page_bytes / GIB)
            labels.append(f"{kind.name} of stage {stage}, {word}" if use.kinds[-1][0] else f"{kind.name}, {word}")
    axes.stackplot(times, *layers, labels=labels)
    axes.set(xlabel="virtual seconds", ylabel="GiB per rank")
    axes.legend(fontsize="small", loc="upper left")
