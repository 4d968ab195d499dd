"""One pipeline stage: its pages and sheets, its memory, and the longest request that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.core.errors import PlanError, PoolTooLarge
from quire.core.units import format_bytes, format_count
from quire.models.shape import ModelShape
from quire.plan import bound, ledger
from quire.plan.geometry import choose_geometry
from quire.plan.layout import ADDRESSABLE_BYTES, manifest
from quire.plan.plan import KindPlan, LedgerLine, StagePlan
from quire.plan.settings import Budget, Settings
from quire.plan.shares import KindShare, StageShare


@dataclass(frozen=True, slots=True)
class CutStage:
    """A stage with pages and ledger, whose number of sheets is not fixed yet."""

    share: StageShare
    kinds: tuple[KindPlan, ...]
    sheet_bytes: int
    fixed: tuple[LedgerLine, ...]
    """Ledger lines that do not depend on the length."""
    spare_bytes: int | None
    """Usable memory minus the fixed lines; None when no memory was given."""
    override_sheets: int | None

    def sheets(self, settings: Settings, length: int) -> int:
        """Sheets when tables are sized for `length`; none where the memory has no room for even one."""
        if not self.kinds:
            return 0
        room = self.room_bytes(settings, length)
        if self.override_sheets is None or (room is not None and room < self.sheet_bytes):
            assert room is not None, "a budget is a memory or an override"
            return min(room, ADDRESSABLE_BYTES) // self.sheet_bytes
        return self.override_sheets

    def lease_sheets(self, settings: Settings) -> int:
        """Sheets that were asked for leases; 0 if the default applies, which never shortens the longest length."""
        return (settings.lease_bytes or 0) // self.sheet_bytes if self.kinds else 0

    def room_bytes(self, settings: Settings, length: int) -> int | None:
        """Bytes of the memory that are left for the pool; None when no memory was given."""
        if self.spare_bytes is None:
            return None
        return max(0, self.spare_bytes - self.tables(settings, length).bytes)

    def tables(self, settings: Settings, length: int) -> LedgerLine:
        ahead = settings.speculative_tokens
        return ledger.table_line(self.kinds, length, settings.batch_tokens, ahead, settings.max_requests)


def cut_stage(
    model: ModelShape,
    settings: Settings,
    budget: Budget,
    shares: Sequence[StageShare],
    index: int,
    page_tokens: Mapping[str, int],
) -> CutStage:
    share = shares[index]
    kinds, sheet_bytes = _cut_kinds(share.kinds, model.max_length, page_tokens, settings.match_unit_tokens)
    ranks, tokens, rows = settings.tensor_parallel, settings.batch_tokens, settings.max_requests
    fixed = (
        ledger.weight_line(model, share, index, len(shares), ranks),
        ledger.activation_line(model, tokens, rows, settings.speculative_tokens, ranks, budget.is_accelerator),
        *ledger.runtime_lines(budget.is_accelerator, settings.draft_bytes, rows, model.vocab_size),
        ledger.staging_line(kinds, tokens, rows, model.hidden_size if len(shares) > 1 else 0),
    )
    usable = ledger.usable_bytes(budget)
    spare = None if usable is None else usable - sum(line.bytes for line in fixed)
    return CutStage(share, kinds, sheet_bytes, fixed, spare, _override(budget, sheet_bytes, index, len(shares)))


def _cut_kinds(
    shares: Sequence[KindShare], model_length: int | None, page_tokens: Mapping[str, int], unit: int
) -> tuple[tuple[KindPlan, ...], int]:
    if not shares:
        return (), 0
    geometry = choose_geometry(shares, model_length, page_tokens, unit)
    kinds = tuple(
        KindPlan(
            kind=share.kind,
            slots=len(share.slots),
            layers=tuple(dict.fromkeys(slot.layer for slot in share.slots)),
            groups=page.groups,
            page_tokens=page.page_tokens,
            page_bytes=page.page_bytes,
            pages_per_sheet=geometry.sheet_bytes // page.page_bytes,
            unit_bytes=share.unit_bytes,
            unique_unit_bytes=sum(slot.unique_unit_bytes for slot in share.slots),
            manifest=manifest(share, page.groups, share.kind.units_per_page(page.page_tokens)),
        )
        for share, page in zip(shares, geometry.pages, strict=True)
    )
    return kinds, geometry.sheet_bytes


def _override(budget: Budget, sheet_bytes: int, index: int, stages: int) -> int | None:
    if budget.sheets is not None:
        if len(budget.sheets) not in (1, stages):
            raise PlanError(f"--sheets gives {len(budget.sheets)} numbers for {stages} stages: give 1 or {stages}")
        return budget.sheets[index % len(budget.sheets)] if sheet_bytes else 0
    if budget.pool_bytes is not None:
        return budget.pool_bytes // sheet_bytes if sheet_bytes else 0
    return None


def longest_length(stage: CutStage, settings: Settings, limit: int) -> int:
    """The longest request for which tables and pool fit together."""
    if not stage.kinds:
        return limit
    ahead, reserved = settings.speculative_tokens, settings.reserved_pages
    leased = stage.lease_sheets(settings)
    return bound.longest(stage.kinds, lambda length: stage.sheets(settings, length) - leased, ahead, reserved, limit)


def seal_stage(stage: CutStage, settings: Settings, length: int, longest: int) -> StagePlan:
    """Fixes the number of sheets; an override larger than the memory, or than tables can address, is refused."""
    sheets = stage.sheets(settings, length)
    pool = sheets * stage.sheet_bytes
    if pool > ADDRESSABLE_BYTES:
        raise PlanError(
            f"a pool of {format_bytes(pool)} is more than tables of 32-bit addresses reach: give at most "
            f"{format_bytes(ADDRESSABLE_BYTES)} ({ADDRESSABLE_BYTES // stage.sheet_bytes:,} sheets) per rank"
        )
    room = stage.room_bytes(settings, length)
    if room is not None and pool > room:
        most = format_count(room // stage.sheet_bytes, "sheet")
        raise PoolTooLarge(
            f"a pool of {format_count(sheets, 'sheet')} is {format_bytes(pool)}, but the memory leaves "
            f"{format_bytes(room)} for it: give at most {most} (--pool {room})"
        )
    return StagePlan(
        first_layer=stage.share.first_layer,
        layers=len(stage.share.layers),
        kinds=stage.kinds,
        sheet_bytes=stage.sheet_bytes,
        sheets=sheets,
        max_length=longest,
        aliases=stage.share.aliases,
        lease_sheets=_lease_sheets(stage, settings, length, sheets),
    )


def _lease_sheets(stage: CutStage, settings: Settings, length: int, sheets: int) -> int:
    """As many as were asked for; by default half of what the longest request leaves, if prefixes can be reused."""
    if settings.lease_bytes is not None:
        return min(sheets, stage.lease_sheets(settings))
    if not length or not stage.kinds or not all(kind.kind.is_shareable for kind in stage.kinds):
        return 0
    needed = bound.minimum(stage.kinds, length, settings.speculative_tokens, settings.reserved_pages)
    return max(0, sheets - needed) // 2


def shortfall(stage: CutStage, sealed: StagePlan, settings: Settings, longest: int) -> str:
    """Why the requested length does not fit on a stage, with the numbers and the fix."""
    if stage.spare_bytes is not None and stage.spare_bytes < stage.sheet_bytes:
        used = sum(line.bytes for line in stage.fixed)
        return (
            f"weights and run-time memory take {format_bytes(used)} of the {format_bytes(used + stage.spare_bytes)} "
            f"that may be used, and no sheet of {format_bytes(stage.sheet_bytes)} is left for the pool"
        )
    length = settings.max_length or 1
    tokens = "1 token needs" if length == 1 else f"{length:,} tokens need"
    needed = bound.minimum(sealed.kinds, length, settings.speculative_tokens, settings.reserved_pages)
    lower = f"lower --max-length to {longest:,} or " if longest else ""
    leases, left = stage.lease_sheets(settings), max(0, sealed.sheets - needed) * sealed.sheet_bytes
    leased = f", and {leases:,} are for leases" if leases else ""
    lower += f"lower --lease-memory to {left} or " if leases else ""
    return (
        f"{tokens} {format_count(needed, 'sheet')} of {format_bytes(sealed.sheet_bytes)} "
        f"({format_bytes(needed * sealed.sheet_bytes)}), there are {sealed.sheets:,} "
        f"({format_bytes(sealed.pool_bytes)}){leased}: {lower}raise the pool to "
        f"{format_count(needed + leases, 'sheet')}"
    )
