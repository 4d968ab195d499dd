"""Which models and options yield the tokens that they should: run with everything that can happen to requests."""

from __future__ import annotations

from quire.sweep.case import Case, spread
from quire.sweep.findings import Finding, examine, short, sweep, types
from quire.sweep.splits import sweep_splits
from quire.sweep.watched import WatchedRunner

__all__ = ["Case", "Finding", "WatchedRunner", "examine", "short", "spread", "sweep", "sweep_splits", "types"]
