"""What of the readings must be told at once: the signs on which the state of a node rests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.collectors.base import Reading
from agent.collectors.metrics import Metric

# Steps at which a value becomes another sign. Near those at which the graph's rules begin and end to hold; health counts as it is.
_STEPS: Mapping[Metric, tuple[float, ...]] = {
    Metric.TEMPERATURE: (85.0, 90.0),
    Metric.GPU_UTILIZATION: (0.8, 0.9),
    Metric.CAPACITY_FREE: (0.01,),
}
Signs = Mapping[str, frozenset[tuple[str, int | None, float | None]]]
"""Of each node: metric, accelerator and sign; a sign of None is an unknown value."""


def vital_signs(readings: Iterable[Reading]) -> Signs:
    """The signs of the nodes that are read."""
    found: dict[str, set[tuple[str, int | None, float | None]]] = {}
    for reading in readings:
        if reading.partition:
            continue
        steps = _STEPS.get(reading.metric)
        if steps is None and reading.metric is not Metric.HEALTH:
            continue
        value = reading.value
        sign = value if value is None or steps is None else float(sum(value >= step for step in steps))
        found.setdefault(reading.node_id, set()).add((reading.metric.value, reading.accelerator_index, sign))
    return {node_id: frozenset(signs) for node_id, signs in found.items()}


def changed(before: Signs, after: Signs) -> frozenset[str]:
    """Nodes whose signs are not what they were."""
    return frozenset(node_id for node_id in before.keys() | after.keys() if before.get(node_id) != after.get(node_id))
