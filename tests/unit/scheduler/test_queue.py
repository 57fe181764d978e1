"""The order of the queue: priority, then fair share, then age."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.ledger import Usage
from services.scheduler.core.pending import Pending
from services.scheduler.core.queue import orders
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares

DEMAND = Demand(1, cpus=1.0, accelerators=1)


def unit(number: int, tenant: str, priority: int = 0, queued_at_s: float = 0.0, demand: Demand = DEMAND) -> PendingUnit:
    return PendingUnit(UnitKey(f"job-{number:03}", 0), tenant, priority, queued_at_s or float(number), demand)


def drained(queue: Selection, *, charge: bool = True) -> list[PendingUnit]:
    out = []
    while (item := queue.pop()) is not None:
        out.append(item)
        if charge:
            queue.charge(item)
    return out


def a_queue(pending: list[PendingUnit], held: dict[str, Usage] | None = None, **weights: float) -> Selection:
    return selection(pending, ("priority", "fair_share", "age"), Shares(held or {}, 100.0, 1000.0, weights))


def selection(pending: list[PendingUnit], names: tuple[str, ...], shares: Shares) -> Selection:
    waiting = Pending(orders(names))
    for item in pending:
        waiting.add(item)
    return Selection(waiting, OrderContext(shares))


def test_priority_goes_first_then_who_holds_least_then_age() -> None:
    pending = [unit(0, "rich"), unit(1, "poor"), unit(2, "poor"), unit(3, "rich", priority=1)]
    held = {"rich": Usage(cpus=10.0, accelerator_milli=10_000)}
    assert [item.key.job_id for item in drained(a_queue(pending, held))] == ["job-003", "job-001", "job-002", "job-000"]


def test_two_tenants_take_turns_however_many_units_one_has() -> None:
    pending = [unit(number, "many") for number in range(10)] + [unit(10 + number, "few") for number in range(3)]
    tenants = [item.tenant_id for item in drained(a_queue(pending))]
    assert tenants[:6] == ["many", "few"] * 3


def test_fractions_that_were_given_back_leave_no_share_behind() -> None:
    held = {"former": Usage(cpus=0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3)}
    assert held["former"].cpus > 0
    pending = [unit(0, "former"), unit(1, "new")]
    assert [item.tenant_id for item in drained(a_queue(pending, held))] == ["former", "new"]


def test_equal_shares_are_equal_however_they_were_added_up() -> None:
    held = {"older": Usage(cpus=0.1 + 0.2), "newer": Usage(cpus=0.3)}
    assert held["older"].cpus > held["newer"].cpus
    pending = [unit(0, "older"), unit(1, "newer")]
    assert [item.tenant_id for item in drained(a_queue(pending, held))] == ["older", "newer"]


def test_a_weight_gives_a_larger_share() -> None:
    pending = [unit(n, "gold") for n in range(20)] + [unit(20 + n, "silver") for n in range(20)]
    first = [item.tenant_id for item in drained(a_queue(pending, gold=3.0))][:12]
    assert first.count("gold") == 9


def test_cpu_work_counts_by_its_dominant_share() -> None:
    shares = Shares({"cpu": Usage(cpus=500.0), "gpu": Usage(cpus=10.0, accelerator_milli=40_000)}, 100.0, 1000.0, {})
    assert (shares.of("cpu"), shares.of("gpu"), shares.of("nobody")) == (0.5, 0.4, 0.0)


units = st.builds(
    unit,
    st.integers(0, 999),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2),
    st.floats(1.0, 10.0),
    st.sampled_from([DEMAND, Demand(4, cpus=2.0), Demand(1, accelerators=8)]),
)


@given(st.lists(units, max_size=40, unique_by=lambda item: item.key), st.lists(st.booleans(), min_size=40, max_size=40))
def test_the_lanes_give_the_order_of_a_full_sort_at_every_step(pending: list[PendingUnit], placed: list[bool]) -> None:
    order = orders(("priority", "fair_share", "age"))
    queue = selection(pending, ("priority", "fair_share", "age"), Shares({}, 100.0, 1000.0, {}))
    shares = Shares({}, 100.0, 1000.0, {})
    context = OrderContext(shares)
    left = list(pending)
    for is_placed in placed[: len(pending)]:
        smallest = min(
            left, key=lambda item: (*(plugin.key(item, context) for plugin in order), item.queued_at_s, item.key)
        )
        item = queue.pop()
        assert item == smallest
        left.remove(smallest)
        if is_placed:
            shares.charge(item.tenant_id, item.demand)
            queue.charge(item)
    assert queue.pop() is None
