"""Configurations that say otherwise than their classes: what a real checkpoint may do, in a tiny model."""

from __future__ import annotations

from quire.sweep.case import Case
from quire.sweep.options import experts, heads, older, ropes, states, windows

CASES: tuple[Case, ...] = (*ropes.CASES, *heads.CASES, *windows.CASES, *experts.CASES, *states.CASES, *older.CASES)
