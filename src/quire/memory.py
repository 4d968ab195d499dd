"""The memory core as a library: plan → pool → tables, for people who build their own engine.

    model = read_model("gemma-3-27b")
    plan = make_plan(model, Settings(max_requests=64), Budget(pool_bytes=8 << 30)).require_fit()
    memory = StageMemory(plan.stages[0], plan, rows=64)

    needs = memory.needs(rows, settled, new, ahead)     # what rows lack to have `new` tokens in flight
    if memory.fitting(rows, needs) == len(rows):        # a question: changes nothing
        memory.grow(needs)                              # take the pages
    else:
        moves = compact(memory)                         # gather pages where that frees a sheet, copy the bytes of
                                                        # those that moved before the next step, and ask again
    memory.settle(rows, settled)                        # give back what no later token reads
    memory.release(row)                                 # give back everything
    memory.addresses(kind, row)                         # what kernels read

The bound counts whole sheets, so an engine that never compacts can hang in a small pool.
`docs/example_engine.py` is a whole engine on it.
"""

from quire.cache.audit import audit
from quire.cache.compaction import Moves, compact
from quire.cache.memory import StageMemory
from quire.models.read import read_config, read_model
from quire.models.shape import ModelShape
from quire.models.shapefile import shape_from_json, shape_to_json
from quire.plan.bound import admits, concurrency
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

__all__ = [
    "Budget",
    "ModelShape",
    "Moves",
    "Plan",
    "Settings",
    "StageMemory",
    "admits",
    "audit",
    "compact",
    "concurrency",
    "make_plan",
    "read_config",
    "read_model",
    "shape_from_json",
    "shape_to_json",
]
