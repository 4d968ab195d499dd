"""Rows that go back to tenants below their share, under fair shares and while all rows are taken (decision 30).

share   one row for each tenant that has requests; the others are divided by weight
claims  a tenant without a row; or one that has up to half of its share with one more, if it was served less than the
        tenant that gives
takes   its first request that was never preempted: so a request takes one row, and a second if a load failed
gives   the tenant furthest above its share: its newest request, never the elder. A reserved request goes last, and
        only for a tenant without a row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quire.scheduler.queue import FairQueue, Ticket
from quire.scheduler.rows import Rows
from quire.scheduler.running import Running
from quire.scheduler.shares import Shares


def claims(queue: FairQueue, shares: Shares, running: Running, rows: Rows) -> Iterator[tuple[Ticket, int]]:
    """Requests that may take a row, and which; those of tenants with the fewest rows for their weight come first."""
    held = Counter(ticket.request.tenant for ticket in running.tickets.values())
    share = shares.rows(rows.count)
    giving = max(held, key=lambda tenant: (held[tenant] - share[tenant], tenant))
    below = [tenant for tenant in queue.of_tenant if not held[tenant] or held[tenant] + 1 <= share[tenant] / 2]
    if not below or held[giving] <= share[giving]:
        return
    row = row_to_give(giving, running, rows)
    for tenant in sorted(below, key=lambda one: (held[one] / shares.weight(one), queue.of_tenant[one][0].arrival)):
        ticket = queue.never_preempted(tenant)
        may_take = shares.served(tenant) < shares.served(giving) and not rows.is_reserved[row]
        if ticket is not None and (may_take or not held[tenant]):
            yield ticket, row


def row_to_give(tenant: str, running: Running, rows: Rows) -> int:
    """The row of a tenant that has several: the first in order is the elder's and is never given."""
    own: list[int] = [row for row in running.order()[1:].tolist() if running.tickets[row].request.tenant == tenant]
    return next((row for row in reversed(own) if not rows.is_reserved[row]), own[-1])
