"""The table of bench/reuse.py, and what must be reached.

A *cell* is a workload, a model and a pool; its figures are means over the seeds. Its *ratio* is Quire ÷ the best of the
baselines that start in that pool, at most 10 and at least a tenth: where one finds next to nothing, a quotient says
little.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

import numpy as np

from reuse_pools import MODELS
from reuse_rows import COLUMNS, QUIRE, UNLIMITED, Row

CAP = 10.0
LEAST_CEILING = 0.05
"""Below this a cell says little about a cache."""
NEVER_BELOW, MOSTLY, MOST_SHARE = 0.98, 1.0, 0.9
GAINS = {True: 1.3, False: 1.05}
"""Geometric mean of the ratios in small pools: of models with windows or states, of the others."""
SMALL, LARGE = ("5", "20"), ("100", UNLIMITED)
OF_CEILING = {True: 0.9, False: 0.95}
"""Without a limit: of models with states, of the others."""
MOST_SPLIT = 0.02
"""Of prefill seconds, for chunks that are cut short, where pages are not."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    workload: str
    model: str
    pool: str
    rows: tuple[Row, ...]

    def found(self, column: str) -> float | None:
        """None: it does not start with some seed."""
        shares = [row.found.get(column) for row in self.rows]
        known = [share for share in shares if share is not None]
        return fmean(known) if len(known) == len(shares) else None

    @property
    def ceiling(self) -> float:
        return fmean(row.ceiling for row in self.rows)

    @property
    def best(self) -> float | None:
        """Of the baselines."""
        return max((one for name in COLUMNS if name != QUIRE and (one := self.found(name)) is not None), default=None)

    @property
    def ratio(self) -> float | None:
        quire, best = self.found(QUIRE), self.best
        if quire is None or best is None:
            return None
        if quire == best:
            return 1.0
        return float(np.clip(quire / best, 1 / CAP, CAP)) if best else CAP

    @property
    def split(self) -> float:
        return split_share(self.rows)


@dataclass(frozen=True, slots=True)
class Goal:
    name: str
    figure: str
    is_reached: bool


def split_share(rows: Iterable[Row]) -> float:
    rows = tuple(rows)
    unsplit = sum(row.unsplit_seconds for row in rows)
    return sum(row.prefill_seconds for row in rows) / unsplit - 1 if unsplit else 0.0


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    by_cell: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_cell[row.workload, row.model, row.pool].append(row)
    return [Cell(*names, tuple(own)) for names, own in by_cell.items()]


def goals(cells: Sequence[Cell]) -> list[Goal]:
    """Those that these cells can say anything about."""
    return [goal for rule in (_never_below, _mostly, _gains, _of_ceiling, _split) for goal in rule(cells)]


def _rated(cells: Iterable[Cell]) -> list[tuple[Cell, float]]:
    return [(cell, ratio) for cell in cells if (ratio := cell.ratio) is not None]


def _never_below(cells: Sequence[Cell]) -> list[Goal]:
    rated = _rated(cells)
    below = [cell for cell, ratio in rated if ratio < NEVER_BELOW - ROUNDING]
    figure = f"{len(rated) - len(below)} of {len(rated)} cells"
    return [Goal(f"≥ {NEVER_BELOW} × the best baseline in every cell", figure, not below)] if rated else []


def _mostly(cells: Sequence[Cell]) -> list[Goal]:
    rated = _rated(cells)
    if not rated:
        return []
    share = fmean(ratio >= MOSTLY - ROUNDING for _, ratio in rated)
    name = f"≥ {MOSTLY} × the best baseline in {MOST_SHARE:.0%} of cells"
    return [Goal(name, f"{share:.0%}", share >= MOST_SHARE)]


def _gains(cells: Sequence[Cell]) -> list[Goal]:
    found = []
    for is_hybrid, wanted in GAINS.items():
        small = [cell for cell in cells if cell.pool in SMALL and MODELS[cell.model].is_hybrid is is_hybrid]
        ratios = [ratio for _, ratio in _rated(small)]
        if ratios:
            whole = [ratio for ratio in ratios if 1 / CAP < ratio < CAP]
            mean, without = geometric_mean(ratios), f"{geometric_mean(whole):.3f}" if whole else "–"
            capped = f"{len(ratios) - len(whole)} of {len(ratios)} cells"
            who = "models with windows or states" if is_hybrid else "full attention"
            name = f"geometric mean of ratios ≥ {wanted} at {' and '.join(SMALL)} %, {who}"
            figure = f"{mean:.3f}; {without} without {capped} at {CAP:.0f}× or a tenth"
            found.append(Goal(name, figure, mean >= wanted))
    return found


def _of_ceiling(cells: Sequence[Cell]) -> list[Goal]:
    found = []
    for has_states, wanted in OF_CEILING.items():
        own = [cell for cell in cells if cell.pool == UNLIMITED and MODELS[cell.model].has_states is has_states]
        shares = [quire / cell.ceiling for cell in own if (quire := cell.found(QUIRE)) is not None and cell.ceiling]
        if shares:
            who = "models with states" if has_states else "other models"
            name = f"≥ {wanted:.0%} of the ceiling without a limit, {who}"
            reached = sum(share >= wanted - ROUNDING for share in shares)
            found.append(
                Goal(name, f"{reached} of {len(shares)} cells, least {min(shares):.1%}", min(shares) >= wanted)
            )
    return found


def _split(cells: Sequence[Cell]) -> list[Goal]:
    rows = [row for cell in cells if cell.pool in LARGE for row in cell.rows if QUIRE in row.found]
    if not rows:
        return []
    share = split_share(rows)
    return [Goal(f"prefill ≤ +{MOST_SPLIT:.0%} for split chunks, large pools", f"{share:+.1%}", share <= MOST_SPLIT)]


def table(cells: Sequence[Cell], columns: Sequence[str]) -> list[str]:
    """Markdown. Shares in percent; the ratio in bold where Quire is not the best."""
    head = ["workload", "model", "pool", "GB", "ceiling", *columns, "Quire ÷ best", "prefill", *_causes(cells)]
    lines = [head, ["---"] * len(head), *(_line(cell, columns, _causes(cells)) for cell in cells)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _line(cell: Cell, columns: Sequence[str], causes: Sequence[str]) -> list[str]:
    pool = cell.pool + ("" if cell.pool == UNLIMITED else " %") + (" (least)" if _has_least(cell) else "")
    size = fmean(row.pool_bytes for row in cell.rows) / 1e9
    ratio, tokens = cell.ratio, sum(row.prompt_tokens for row in cell.rows)
    shown = "–" if ratio is None else f"{ratio:.3f}" if ratio >= MOSTLY - ROUNDING else f"**{ratio:.3f}**"
    missed = _missed(cell.rows)
    return [
        cell.workload,
        cell.model,
        pool,
        f"{size:.2f}",
        _percent(cell.ceiling),
        *(_percent(cell.found(column)) for column in columns),
        shown,
        f"{cell.split:+.1%}",
        *(_percent(missed[cause] / tokens) for cause in causes),
    ]


def _has_least(cell: Cell) -> bool:
    return any(row.is_least for row in cell.rows)


def _missed(rows: Iterable[Row]) -> Counter[str]:
    missed: Counter[str] = Counter()
    for row in rows:
        missed.update(row.missed)
    return missed


def _causes(cells: Sequence[Cell]) -> list[str]:
    return sorted({cause for cell in cells for row in cell.rows for cause in row.missed})


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def print_report(rows: Sequence[Row], columns: Sequence[str], show: Callable[[str], None] = print) -> bool:
    """Whether all goals were reached."""
    cells = cells_of(rows)
    for line in table(cells, columns):
        show(line)
    show("")
    if any(_has_least(cell) for cell in cells):
        show("(least): the share of the working set cannot run the longest request; the smallest pool that can.")
    if any(cell.found(column) is None for cell in cells for column in columns):
        show("–: the planner of this column does not start in a pool of that size.")
    for cell in cells:
        if cell.ceiling < LEAST_CEILING:
            show(f"{cell.workload} on {cell.model}: a ceiling of {cell.ceiling:.1%} says little.")
    found = goals(cells)
    for goal in found:
        show(f"{'reached' if goal.is_reached else 'MISSED '}  {goal.name}: {goal.figure}")
    return all(goal.is_reached for goal in found)
