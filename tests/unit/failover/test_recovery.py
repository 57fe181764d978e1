from __future__ import annotations

from dataclasses import replace

from services.failover.recovery import Checkpoint, LostRun, Unit, plan_recoveries

UNIT = Unit("job", 0)
RUN = LostRun("job.0.2", UNIT, 2, "north", ("north-1", "north-2"), "/old/40", 40)


def test_newest_checkpoint_by_step_and_the_unusable_nodes_of_the_run() -> None:
    (plan,) = plan_recoveries([RUN], {UNIT: Checkpoint("/new/90", 90)}, {"north-2", "south-9"}, set())
    assert (plan.restore_from, plan.restore_step) == ("/new/90", 90)
    assert plan.exclude_node_ids == ("north-2",)


def test_a_run_without_a_newer_checkpoint_starts_from_where_it_was_started() -> None:
    (none,) = plan_recoveries([RUN], {}, set(), set())
    assert (none.restore_from, none.restore_step) == ("/old/40", 40)
    (older,) = plan_recoveries([RUN], {UNIT: Checkpoint("/new/20", 20)}, set(), set())
    assert older.restore_step == 40


def test_a_unit_that_never_wrote_one_starts_afresh() -> None:
    (plan,) = plan_recoveries([replace(RUN, restore_from="", restore_step=7)], {}, set(), set())
    assert (plan.restore_from, plan.restore_step) == ("", 0)


def test_planned_and_repeated_runs_are_planned_once() -> None:
    other = replace(RUN, run_id="other.0.1", unit=Unit("other", 0))
    plans = plan_recoveries([other, RUN, RUN], {}, set(), {"other.0.1"})
    assert [plan.run.run_id for plan in plans] == ["job.0.2"]
