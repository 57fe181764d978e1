"""Which readings must be told at once."""

from __future__ import annotations

from datetime import UTC, datetime

from agent.collectors.base import Reading, Source
from agent.collectors.metrics import Metric
from agent.vital_signs import changed, vital_signs

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(metric: Metric, value: float | None, node_id: str = "a", index: int | None = 0) -> Reading:
    reason = "gone" if value is None else ""
    return Reading(node_id, metric, value, Source.DIRECTLY_MEASURED, NOW, accelerator_index=index, reason=reason)


def told(before: list[Reading], after: list[Reading]) -> frozenset[str]:
    return changed(vital_signs(before), vital_signs(after))


def test_a_value_that_moves_between_steps_is_no_news() -> None:
    assert told([read(Metric.TEMPERATURE, 50.0)], [read(Metric.TEMPERATURE, 84.9)]) == frozenset()
    assert told([read(Metric.GPU_UTILIZATION, 0.1)], [read(Metric.GPU_UTILIZATION, 0.79)]) == frozenset()
    assert told([read(Metric.POWER, 10.0)], [read(Metric.POWER, 900.0)]) == frozenset()


def test_a_step_health_and_the_unknown_are_news_of_their_node() -> None:
    other = read(Metric.HEALTH, 1.0, "b")
    assert told([read(Metric.TEMPERATURE, 84.0), other], [read(Metric.TEMPERATURE, 85.0), other]) == {"a"}
    assert told([read(Metric.TEMPERATURE, 89.0)], [read(Metric.TEMPERATURE, 90.0)]) == {"a"}
    assert told([read(Metric.HEALTH, 1.0), other], [read(Metric.HEALTH, 0.5), other]) == {"a"}
    assert told([read(Metric.CAPACITY_FREE, 1.0)], [read(Metric.CAPACITY_FREE, 0.0)]) == {"a"}
    assert told([read(Metric.GPU_UTILIZATION, 0.5)], [read(Metric.GPU_UTILIZATION, None)]) == {"a"}


def test_accelerators_are_told_apart_and_nodes_come_and_go() -> None:
    first, second = read(Metric.HEALTH, 0.0, index=0), read(Metric.HEALTH, 0.0, index=1)
    assert told([first], [second]) == {"a"}
    assert told([], [first]) == {"a"}
    assert told([first], []) == {"a"}
