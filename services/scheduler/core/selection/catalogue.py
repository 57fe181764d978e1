"""The plugins of this package that builtin.py registers."""

from __future__ import annotations

from services.scheduler.core.admission import Limit
from services.scheduler.core.preallocation import PreallocationLimit
from services.scheduler.core.selection.caps import MaxRunningLimit, QueueCapLimit
from services.scheduler.core.selection.dominant import DrfOrder, HierarchicalDrfOrder
from services.scheduler.core.selection.multifactor import MultifactorOrder
from services.scheduler.core.selection.objectives_sla import SlackOrder, SlaOrder
from services.scheduler.core.selection.quotas import QuotaLimit
from services.scheduler.core.selection.starvation import StarvationOrder
from services.scheduler.core.selection.usage import FairTreeOrder, UsageOrder
from services.scheduler.core.waiting_unit import Order

LIMITS: tuple[Limit, ...] = (QuotaLimit(), MaxRunningLimit(), QueueCapLimit(), PreallocationLimit())
ORDERS: tuple[Order, ...] = (
    DrfOrder(),
    HierarchicalDrfOrder(),
    UsageOrder(),
    FairTreeOrder(),
    MultifactorOrder(),
    StarvationOrder(),
    SlackOrder(),
    SlaOrder(),
)
