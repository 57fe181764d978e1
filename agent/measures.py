"""The agent's own metrics, read from its parts when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.engines.base import Engine

Number = Callable[[], float]


class AgentMeasures(Collector):
    """``gauges`` and ``counters`` name further values: (name, help) to a function."""

    def __init__(
        self, engine: Engine, gauges: Mapping[tuple[str, str], Number], counters: Mapping[tuple[str, str], Number]
    ) -> None:
        self._engine = engine
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        nodes = GaugeMetricFamily("meridian_agent_nodes", "Nodes by state", labels=["state"])
        states: dict[str, int] = {}
        ages_s: list[float] = []
        for node in self._engine.nodes():
            states[node.state] = states.get(node.state, 0) + 1
            ages_s.append(node.last_beat_age_s)
        for state, count in states.items():
            nodes.add_metric([state], count)
        yield nodes
        yield GaugeMetricFamily(
            "meridian_agent_node_silence_seconds", "Longest time since a node was heard", max(ages_s, default=0.0)
        )
        yield GaugeMetricFamily("meridian_agent_runs", "Runs that have not ended", len(self._engine.list_runs()))
        for (name, text), number in self._gauges.items():
            yield GaugeMetricFamily(name, text, number())
        for (name, text), number in self._counters.items():
            yield CounterMetricFamily(name, text, number())


def registry_of(measures: AgentMeasures) -> CollectorRegistry:
    """A registry with the agent's metrics."""
    registry = CollectorRegistry()
    registry.register(measures)
    return registry
