"""The report of a plan: ledger, memory, kinds, sheets, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.cli.text import bar, bold, heading, table
from quire.core.units import format_bytes, format_count, format_tokens
from quire.kinds import Keeps
from quire.plan.plan import KindPlan, Plan
from quire.plan.settings import Budget
from quire.planner.advice import Offer
from quire.planner.reverse import Target
from quire.planner.workload import Served

BLOCKS = {
    "weights": "█",
    "activations": "▓",
    "graphs": "▒",
    "workspace": "▒",
    "staging": "▒",
    "tables": "▒",
    "pool": "░",
}


def print_plan(
    plan: Plan,
    data: dict[str, Any],
    planned_for: str,
    offers: Sequence[Offer] = (),
    target: Target | None = None,
    served: Served | None = None,
    has_memory: bool = False,
) -> None:
    _title(plan, planned_for, target, has_memory)
    _ledger(plan)
    _kinds(plan)
    _pool(plan, data)
    if plan.max_length:
        _curve(plan, data)
    if len(plan.ranks) > 1:
        _ranks(plan)
    _leases(data["leases"])
    _host(plan)
    _target(target, has_memory)
    _served(served)
    if offers:
        heading("Settings that would fit")
        for offer in offers:
            print(f"  {offer.option}    ({offer.effect})")
    if notes := (*plan.notes, *_of_ranks(plan, offers, target)):
        heading("Notes")
        for note in notes:
            print(f"  · {note}")


def _of_ranks(plan: Plan, offers: Sequence[Offer], target: Target | None) -> tuple[str, ...]:
    """A note on ranks and stages, if they are planned or offered."""
    fleet = target.fleet if target else None
    is_offered = any("-parallel" in offer.option for offer in offers)
    if len(plan.ranks) == 1 and not is_offered and (fleet is None or fleet.devices == fleet.replicas):
        return ()
    how = "ranks and stages run as processes of their own (docs/ranks.md)"
    return (f"{how}: proven on CPUs, not measured on several GPUs yet",)


def _title(plan: Plan, planned_for: str, target: Target | None, has_memory: bool) -> None:
    """The main result: whether it fits, or what a target needs."""
    dtypes = f"KV {plan.kv_dtype}" + (f", state {plan.state_dtype}" if plan.state_dtype else "")
    fits = "fits" if plan.fits else "DOES NOT FIT"
    answer = fits if target is None else _needed(target, has_memory)
    print(f"{bold(plan.model)} ({plan.family}), {dtypes}: {bold(answer)}")
    ranks = f", {plan.tensor_parallel} tensor-parallel ranks" if plan.tensor_parallel > 1 else ""
    stages = f", {plan.pipeline_parallel} pipeline stages" if plan.pipeline_parallel > 1 else ""
    alone = "" if target is None else f"; one engine of {format_count(len(plan.ranks), 'device')} {fits}"
    print(f"planned for {planned_for}{ranks}{stages}{alone}")


def _needed(target: Target, has_memory: bool) -> str:
    whom, is_one = _whom(target), target.requests == 1
    if target.fleet is None and has_memory:
        return f"{whom} {'DOES' if is_one else 'DO'} NOT FIT"
    pool = f"a pool of {format_bytes(target.pool_bytes)} per rank"
    needed = pool if target.fleet is None else format_count(target.fleet.devices, "device")
    return f"{whom} {'needs' if is_one else 'need'} {needed}{_today(target)}"


def _today(target: Target) -> str:
    """What the target needs with engines that Quire runs today, where that is not the same."""
    if target.fleet is None or target.fleet == target.servers:
        return ""
    return f" ({target.servers.devices:,} as Quire runs today)" if target.servers else " (Quire cannot run it today)"


def _whom(target: Target) -> str:
    return f"{format_count(target.requests, 'request')} of {format_count(target.length, 'token')}"


def budget_line(budget: Budget) -> str:
    line = budget.device
    if budget.memory_bytes:
        line += f": {format_bytes(budget.memory_bytes)}, {budget.memory_fraction:.0%} to be used"
    if budget.pool_bytes is not None:
        line += f", the pool fixed at {format_bytes(budget.pool_bytes)} per rank"
    if budget.sheets is not None:
        sheets = ",".join(map(str, budget.sheets))
        line += f", the pool fixed at {sheets} sheet{'' if sheets == '1' else 's'}"
    return line


def _ledger(plan: Plan) -> None:
    lines = plan.ranks[plan.bottleneck_rank].ledger
    closed = "" if lines[-1].name in ("margin", "missing") else " (no memory given: only the pool is checked)"
    heading("Ledger" + (f" of rank {plan.bottleneck_rank}, the bottleneck" if len(plan.ranks) > 1 else "") + closed)
    rows = [(line.name, format_bytes(abs(line.bytes)), line.basis, line.detail) for line in lines]  # missing is below 0
    table(("use", "bytes", "basis", ""), rows, left=(0, 2, 3))
    if lines[-1].name == "margin":
        heading("Memory")
        grouped: dict[str, int] = {}
        for line in lines:
            name = "run time" if BLOCKS.get(line.name) == "▒" else line.name
            grouped[name] = grouped.get(name, 0) + max(0, line.bytes)
        blocks = {**BLOCKS, "run time": "▒", "margin": "·"}
        bar([(name, size, blocks[name]) for name, size in grouped.items()])


def _kinds(plan: Plan) -> None:
    heading("Kinds" + (f" on stage {plan.bottleneck_stage}" if plan.pipeline_parallel > 1 else ""))
    rows = [
        (
            kind.name,
            str(len(kind.layers)),
            "1 state" if kind.kind.keeps is Keeps.STATE else f"{kind.page_tokens} tokens",
            str(kind.groups),
            format_bytes(kind.page_bytes),
            f"{kind.pages_per_sheet:,}",
            format_bytes(kind.fixed_bytes) if kind.fixed_bytes else "0",
            _slope(kind),
        )
        for kind in plan.bottleneck.kinds
    ]
    head = ("kind", "layers", "page", "tables", "page bytes", "pages/sheet", "A: fixed", "B: per token")
    table(head, rows)
    fixed = sum(kind.fixed_bytes for kind in plan.bottleneck.kinds)
    slope = sum(kind.bytes_per_token for kind in plan.bottleneck.kinds)
    print(f"  a long request holds A + B·tokens = {format_bytes(fixed)} + {slope:,.0f} B·tokens per rank")


def _slope(kind: KindPlan) -> str:
    return f"{kind.bytes_per_token:,.0f} B" if kind.kind.grows else "0"


def _pool(plan: Plan, data: dict[str, Any]) -> None:
    stage = plan.bottleneck
    heading("Pool")
    print(f"  {format_count(stage.sheets, 'sheet')} of {format_bytes(stage.sheet_bytes)}, any kind in any sheet; "
          f"unused tails {data['tail_waste']:.2%}; index view: {data['index_view']}")  # fmt: skip
    checkpoint = plan.checkpoint_bytes
    equivalent = f" (as much as {checkpoint / plan.bytes_per_token:,.0f} tokens)" if plan.bytes_per_token else ""
    extra = f"; a state checkpoint takes {format_bytes(checkpoint)}{equivalent}" if checkpoint else ""
    unit = plan.reuse_unit_tokens
    why = f", whole pages of every kind ({plan.match_unit_tokens} asked for)" if unit > plan.match_unit_tokens else ""
    if plan.no_reuse_because:
        print(f"  prefixes are not reused: {plan.no_reuse_because}")
    else:
        print(f"  prefixes match in units of {unit} tokens{why}{extra}")
    limit = plan.model_max_length
    if not plan.max_length:
        reason = "not even one token fits"
    elif plan.max_length == limit:
        reason = "the model's own limit"
    elif plan.max_length == plan.requested_max_length:
        reason = "as asked"
    else:
        reason = "what the memory holds, or the most we plan for where the model has no limit"
        if limit or plan.requested_max_length:
            reason = "what the pool holds"
    print(f"  longest length {bold(f'{plan.max_length:,}')} tokens: {reason}")


def _curve(plan: Plan, data: dict[str, Any]) -> None:
    heading("Requests that fit together")
    most = max(data["concurrency"].values()) or 1
    rows = []
    for length, requests in data["concurrency"].items():
        tokens = int(length)
        footprint = sum(
            pages * stage.sheet_bytes / kind.pages_per_sheet
            for stage, record in zip(plan.stages, data["stages"], strict=True)
            for kind, pages in zip(stage.kinds, record["demand"][length].values(), strict=True)
        )
        blocks = "▇" * max(1 if requests else 0, round(24 * requests / most))
        with_prefill = data["concurrency_with_prefill"][length]
        row = (format_tokens(tokens), f"{requests:,}", f"{with_prefill:,}", format_bytes(int(footprint)))
        rows.append((*row, f"{data['waste'][length]:.4f}" if data["waste"][length] else "–", blocks))
    head = ("length", "requests", f"with {plan.batch_tokens:,} in prefill", "bytes each", "waste", "")
    table(head, rows, left=(5,))
    if most > plan.max_requests:
        print(f"  --max-requests {plan.max_requests:,} caps how many run at once")
    beyond = [format_tokens(int(length)) for length in data["concurrency"] if int(length) > plan.max_length]
    if beyond:
        print(f"  beyond the longest length, so none is admitted: {', '.join(beyond)}")


def _ranks(plan: Plan) -> None:
    """One row for each sequence of ranks that are alike."""
    heading("Ranks")
    rows: list[tuple[str, ...]] = []
    first = 0
    for rank, following in zip(plan.ranks, (*plan.ranks[1:], None), strict=True):
        if following and (following.stage, following.idle_bytes) == (rank.stage, rank.idle_bytes):
            continue
        stage = plan.stages[rank.stage]
        numbers = f"{first}–{rank.rank}" if first < rank.rank else str(rank.rank)
        layers = f"{stage.first_layer}–{stage.first_layer + stage.layers - 1}" if stage.layers else "none"
        mark = "bottleneck" if rank.stage == plan.bottleneck_stage and not rank.idle_bytes else ""
        sizes = (f"{stage.sheets:,}", format_bytes(rank.pool_bytes), format_bytes(rank.idle_bytes))
        rows.append((numbers, str(rank.stage), layers, *sizes, mark))
        first = rank.rank + 1
    table(("rank", "stage", "layers", "sheets", "pool", "idle", ""), rows, left=(0, 6))


def _leases(leases: dict[str, Any] | None) -> None:
    """What lease memory holds; if there is none, what one session would need."""
    if leases is None:
        return
    heading("Leases")
    session = f"of {format_tokens(leases['session_tokens'])} tokens"
    sheets = " + ".join(f"{count:,}" for count in leases["lease_sheets"])
    size = f"{sheets} sheets, {format_bytes(leases['lease_bytes'])} per rank"
    print(f"  {size}, for leased prefixes: {format_count(leases['sessions'], 'session')} {session}")
    if leases["host_sessions"] is not None:
        print(f"  {leases['host_sessions']:,} more in host memory, while they pause")
    if not leases["sessions"]:
        print(f"  --lease-memory {leases['session_bytes']} would hold one")
    table(("--lease-memory", f"sessions {session}", "longest length"), [_lease_row(row) for row in leases["rows"]])


def _lease_row(row: dict[str, int]) -> tuple[str, ...]:
    size = format_bytes(row["lease_bytes"]) if row["lease_bytes"] else "0"
    return size, f"{row['sessions']:,}", f"{row['max_length']:,}"


def _host(plan: Plan) -> None:
    if plan.host is None:
        return
    heading("Host tier")
    rows = [(name, f"{pages:,}", format_bytes(plan.host.page_bytes[name])) for name, pages in plan.host.pages.items()]
    table(("kind", "pages", "page bytes, each byte once"), rows)
    print(f"  {plan.host.warm_sessions:,} idle sessions of {plan.host.session_tokens:,} tokens stay warm "
          f"in {format_bytes(plan.host.budget_bytes)}: {plan.host.blocks:,} blocks of "
          f"{format_bytes(plan.host.block_bytes)}")  # fmt: skip


def _target(target: Target | None, has_memory: bool) -> None:
    if target is None:
        return
    heading(f"For {_whom(target)}")
    sheets = ", ".join(f"{count:,}" for count in target.sheets)
    print(f"  in one engine: a pool of {format_bytes(target.pool_bytes)} per device (sheets per stage: {sheets})")
    fleet = target.fleet
    if fleet is not None:
        print(f"  fewest devices of this kind: {fleet.devices:,}, as {fleet.replicas:,} × (--tensor-parallel "
              f"{fleet.tensor_parallel} --pipeline-parallel {fleet.pipeline_parallel}), each holding "
              f"{fleet.requests_each:,}")  # fmt: skip
        print(f"  on one device each, as Quire runs a model today: {_servers(target)}")
    elif has_memory:
        print("  no number of ranks and stages that we try holds even one of them on this device")
    else:
        print("  devices: give --device or --memory to learn how many")


def _servers(target: Target) -> str:
    if target.servers is None:
        return "not even one of them fits"
    return f"{format_count(target.servers.replicas, 'server')}, each holding {target.servers.requests_each:,}"


def _served(served: Served | None) -> None:
    if served is None:
        return
    heading("Workload")
    if served.leased is not None:
        _agents(served)
        return
    is_capped = served.active < served.fitting
    limit = f"--max-requests; memory would hold {served.fitting:,}" if is_capped else "as many as memory holds"
    print(f"  {served.users:,} users, {served.active:,} of them being computed at once: {limit}")
    print(f"  {served.mean_length:,} tokens held on average by a request that is being computed")
    if served.too_long:
        print(f"  {served.too_long:.1%} of the requests are longer than the plan admits and would be refused")


def _agents(served: Served) -> None:
    print(
        f"  {served.users:,} agents, {served.active:,} of them being computed at once, {served.leased:,} with a lease"
    )
    print(f"  {served.expired:.1%} of the pauses are longer than the lease: the next turn may begin cold")
    if served.too_long:
        print(f"  {served.too_long:.1%} of the requests are longer than the plan admits and would be refused")
    if not served.users:
        print("  lease memory holds none: raise --lease-memory")
