"""`--plot`: the ledger as a bar and the curve of concurrent requests over length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.core.errors import InputError
from quire.core.units import GIB, format_tokens
from quire.options.extras import naming_extras
from quire.plan import bound
from quire.plan.plan import Plan


def draw(plan: Plan, data: dict[str, Any], path: Path) -> None:
    with naming_extras("--plot"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (ledger, curve) = pyplot.subplots(2, 1, figsize=(9, 6.5), height_ratios=(1, 3), layout="constrained")
    left = 0.0
    for line in data["ledger"]:
        size = max(0, line["bytes"]) / GIB
        ledger.barh(0, size, left=left, label=f"{line['name']} {size:.2f}")
        left += size
    ledger.set(yticks=[], xlabel="GiB per device", title=f"{plan.model}, KV {plan.kv_dtype}")
    ledger.legend(ncols=4, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.55))
    lengths = _lengths(plan)
    curve.plot(lengths, [bound.concurrency(plan, n) for n in lengths], label="requests that fit together")
    with_prefill = [bound.concurrency(plan, n, with_prefill=True) for n in lengths]
    curve.plot(lengths, with_prefill, "--", label=f"with a {plan.batch_tokens:,}-token chunk")
    curve.set(xscale="log", yscale="symlog", xlabel="tokens per request", ylabel="requests")
    curve.set_ylim(bottom=0)
    ticks = [n for n in lengths if n & (n - 1) == 0 and n.bit_length() % 2]
    curve.set_xticks(ticks, [format_tokens(n) for n in ticks])
    curve.grid(alpha=0.3)
    curve.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    pyplot.close(figure)


def _lengths(plan: Plan) -> list[int]:
    """Four points an octave from 256 to the longest."""
    longest = max(plan.max_length, 256)
    lengths = [256]
    while lengths[-1] < longest:
        lengths.append(min(longest, int(256 * 2 ** (len(lengths) / 4))))
    return lengths
