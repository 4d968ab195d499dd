"""The ledger, measured at the start: what a device's memory was used for, compared with the plan.

device   [ weights | activations | pool | tables | staging | graphs |····· workspace ·····| free ]
             each line as it is allocated                             what no line explains
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.core.errors import DoesNotFit
from quire.core.units import format_bytes
from quire.plan.plan import Plan
from quire.worker.ranks.share import WHOLE, Share, ledger_of, stage_of


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the ledger."""

    name: str
    planned_bytes: int
    measured_bytes: int


class Meter:
    """Measures a device's memory. Kernels, libraries and the driver allocate without torch, so the device's own count
    is used as well: workspace is what is in use beyond the lines, by other processes too."""

    def __init__(self, device: torch.device, share: Share = WHOLE) -> None:
        self.device, self.share = device, share
        self._lines: dict[str, int] = {}
        self._others = 0
        """In use before weights are loaded: by other processes, and by the driver for this one."""

    def begin(self) -> None:
        """Before weights are loaded."""
        self._others = self.taken()

    def free(self) -> int:
        """Free bytes, with the unused ones that torch reserves."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def note(self, name: str, size_bytes: int) -> None:
        self._lines[name] = size_bytes

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self.device))

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device))

    def taken(self) -> int:
        """Bytes of the device in use by any process."""
        return int(torch.cuda.mem_get_info(self.device)[1]) - self.free()

    def require_room(self, plan: Plan, sheets: int) -> None:
        """Checks before the pool is allocated that it fits, with all that is allocated now and later."""
        stage, step = stage_of(plan, self.share), self._lines.get("activations", 0)
        graphs = sheets * stage.sheet_bytes + self._planned(plan, "graphs")
        room = self.free() - step - graphs
        if stage.pool_bytes > room:
            raise DoesNotFit(
                f"a pool of {format_bytes(stage.pool_bytes)} exceeds the {format_bytes(max(0, room))} that are left "
                f"after weights of {format_bytes(self._lines.get('weights', 0))}, {format_bytes(step)} that a step "
                f"was measured to take and {format_bytes(graphs)} for recorded steps: lower the pool to "
                f"{format_bytes(max(0, room))} or less, or max_requests and batch_tokens"
            )
        self._require_limit(plan, stage.pool_bytes + sheets * stage.sheet_bytes)

    def require_step(self, plan: Plan) -> None:
        """Checks at the end that the largest step still finds its memory, and that all that this process has taken
        since it began is within the limit."""
        self._require_limit(plan, self._workspace())
        free, needed = self.free(), self._lines.get("activations", 0)
        if needed > free:
            raise DoesNotFit(
                f"a step takes up to {format_bytes(needed)} and {format_bytes(free)} are free: lower the pool by "
                f"{format_bytes(needed - free)} or more, or --batch-tokens"
            )

    def _require_limit(self, plan: Plan, more_bytes: int) -> None:
        """Compares what this process has allocated, will allocate and needs for a step with its limit. Recordings are
        added, because torch does not count them."""
        step, pool = self._lines.get("activations", 0), stage_of(plan, self.share).pool_bytes
        held = self.allocated() + self._lines.get("graphs", 0) + more_bytes
        if plan.limit_bytes is None or held + step <= plan.limit_bytes:
            return
        excess = held + step - plan.limit_bytes
        smaller = f"lower the pool to {format_bytes(pool - excess)} (--pool {pool - excess}), " if excess < pool else ""
        raise DoesNotFit(
            f"{format_bytes(held)} with a pool of {format_bytes(pool)}, and {format_bytes(step)} that a step was "
            f"measured to take, exceed the {format_bytes(plan.limit_bytes)} that may be used by "
            f"{format_bytes(excess)}: {smaller}lower --max-requests or --batch-tokens, or raise --memory or "
            "--memory-fraction; a saved plan is made again with them"
        )

    def _workspace(self) -> int:
        """Bytes beyond torch's and the recordings' that libraries and the driver have taken since the start: for
        kernels that were loaded, and what those keep."""
        return max(0, self.taken() - self._others - self.allocated() - self._lines.get("graphs", 0))

    def lines(self, plan: Plan) -> tuple[Measured, ...]:
        """In the ledger's order. Activations are not held between steps."""
        known = dict(self._lines)
        held = sum(size for name, size in known.items() if name != "activations")
        known["workspace"] = max(0, self.taken() - held)
        names = [line.name for line in ledger_of(plan, self.share).ledger if line.name in known]
        names += [name for name in known if name not in names]
        return tuple(Measured(name, self._planned(plan, name), known[name]) for name in names)

    def _planned(self, plan: Plan, name: str) -> int:
        return sum(line.bytes for line in ledger_of(plan, self.share).ledger if line.name == name)
