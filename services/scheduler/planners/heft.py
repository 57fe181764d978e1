"""List scheduling of task graphs on unlike processors: HEFT and PEFT.

HEFT: Topcuoglu, Hariri, Wu: Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing, IEEE TPDS
13 (3), 2002. PEFT: Arabnejad, Barbosa: List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost Table, IEEE
TPDS 25 (3), 2014.

Inputs of both: ``cost`` (N, P) run time of task n on processor p in seconds, infinite where it cannot run; ``edges`` (E, 2)
from task, to task; ``transfer`` (E) mean time of an edge's data between two processors; ``link`` (P, P) relative time of a
transfer from p to q (default: 1, and 0 on the same processor; its off-diagonal mean should be 1, the rank uses ``transfer``).
"""

from __future__ import annotations

import bisect
import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import FloatArray, IntArray, numbers, whole_numbers


@dataclass(frozen=True, slots=True)
class GraphSchedule:
    """Per task (N): its processor, start and finish in seconds from the beginning; ``priority`` is the rank it was chosen by."""

    processor: IntArray
    start_s: FloatArray
    finish_s: FloatArray
    priority: FloatArray

    @property
    def makespan_s(self) -> float:
        """Finish of the last task."""
        return float(self.finish_s.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class _Graph:
    cost: FloatArray
    transfer: FloatArray
    link: FloatArray
    successors: list[list[tuple[int, int]]]
    predecessors: list[list[tuple[int, int]]]
    order: list[int]


def upward_rank(cost: ArrayLike, edges: ArrayLike, transfer: ArrayLike) -> FloatArray:
    """HEFT's rank_u (N): mean cost + greatest over successors of (transfer + their rank); means over finite costs."""
    return _upward_rank(_graph(cost, edges, transfer, None))


def optimistic_cost_table(cost: ArrayLike, edges: ArrayLike, transfer: ArrayLike) -> FloatArray:
    """PEFT's OCT (N, P): the longest path from task n, run on p, to the exits, every child on its best processor."""
    return _optimistic_cost(_graph(cost, edges, transfer, None))


def heft(cost: ArrayLike, edges: ArrayLike, transfer: ArrayLike, link: ArrayLike | None = None) -> GraphSchedule:
    """HEFT.

    1. `upward_rank`; tasks in descending order (ties by index).
    2. Each on the processor of earliest finish, in the first gap that is long enough (insertion); ties: lower processor.
    """
    graph = _graph(cost, edges, transfer, link)
    rank = _upward_rank(graph)
    position = {task: index for index, task in enumerate(graph.order)}
    # With zero costs a successor may equal its predecessor's rank: the topological order breaks such ties first.
    order = sorted(graph.order, key=lambda task: (-rank[task], position[task]))
    return _place(graph, order, rank, np.zeros_like(graph.cost))


def peft(cost: ArrayLike, edges: ArrayLike, transfer: ArrayLike, link: ArrayLike | None = None) -> GraphSchedule:
    """PEFT.

    1. `optimistic_cost_table`; rank of a task = mean of its row.
    2. Among the tasks whose predecessors are placed, the greatest rank (ties by index).
    3. On the processor of the least earliest finish + OCT, by insertion; ties: lower processor.
    """
    graph = _graph(cost, edges, transfer, link)
    table = _optimistic_cost(graph)
    rank = _finite_mean(np.where(np.isfinite(graph.cost), table, np.inf))
    waiting = np.array([len(before) for before in graph.predecessors], dtype=np.int64)
    ready = [(-rank[task], task) for task in graph.order if not waiting[task]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, task = heapq.heappop(ready)
        order.append(task)
        for after, _ in graph.successors[task]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (-rank[after], after))
    return _place(graph, order, rank, table)


def _graph(cost: ArrayLike, edges: ArrayLike, transfer: ArrayLike, link: ArrayLike | None) -> _Graph:
    costs = numbers("cost", cost, (None, None), low=0.0, infinite=True)
    tasks, processors = costs.shape
    if tasks and not np.isfinite(costs).any(axis=1).all():
        task = int(np.flatnonzero(~np.isfinite(costs).any(axis=1))[0])
        raise PolicyError(f"cost[{task}]: the task runs on no processor")
    ends = whole_numbers("edges", np.reshape(edges, (-1, 2)), (None, 2), low=0, high=max(tasks - 1, 0))
    times = numbers("transfer", transfer, (len(ends),), low=0.0)
    links = 1.0 - np.eye(processors) if link is None else numbers("link", link, (processors, processors), low=0.0)
    successors: list[list[tuple[int, int]]] = [[] for _ in range(tasks)]
    predecessors: list[list[tuple[int, int]]] = [[] for _ in range(tasks)]
    for edge, (first, second) in enumerate(ends.tolist()):
        successors[first].append((second, edge))
        predecessors[second].append((first, edge))
    return _Graph(costs, times, links, successors, predecessors, _topological(successors, predecessors))


def _topological(successors: list[list[tuple[int, int]]], predecessors: list[list[tuple[int, int]]]) -> list[int]:
    waiting = [len(before) for before in predecessors]
    ready = [task for task, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        task = heapq.heappop(ready)
        order.append(task)
        for after, _ in successors[task]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, after)
    if len(order) < len(waiting):
        stuck = next(task for task, count in enumerate(waiting) if count)
        raise PolicyError(f"edges: task {stuck} is on or behind a cycle")
    return order


def _finite_mean(values: FloatArray) -> FloatArray:
    finite = np.isfinite(values)
    return np.asarray(np.where(finite, values, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1), dtype=np.float64)


def _upward_rank(graph: _Graph) -> FloatArray:
    rank = _finite_mean(graph.cost)
    for task in reversed(graph.order):
        rank[task] += max((graph.transfer[edge] + rank[after] for after, edge in graph.successors[task]), default=0.0)
    return rank


def _optimistic_cost(graph: _Graph) -> FloatArray:
    table = np.zeros_like(graph.cost)
    away = 1.0 - np.eye(graph.cost.shape[1])
    for task in reversed(graph.order):
        for after, edge in graph.successors[task]:
            through = table[after] + graph.cost[after] + graph.transfer[edge] * away
            table[task] = np.maximum(table[task], through.min(axis=1))
    return table


def _place(graph: _Graph, order: list[int], priority: FloatArray, ahead: FloatArray) -> GraphSchedule:
    tasks, processors = graph.cost.shape
    processor = np.zeros(tasks, dtype=np.int64)
    start, finish = np.zeros(tasks), np.zeros(tasks)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(processors)]
    for task in order:
        data_at = np.zeros(processors)
        for before, edge in graph.predecessors[task]:
            np.maximum(data_at, finish[before] + graph.transfer[edge] * graph.link[processor[before]], out=data_at)
        begins = np.array([_gap(busy[p], data_at[p], graph.cost[task, p]) for p in range(processors)])
        ends = begins + graph.cost[task]
        chosen = int(np.argmin(ends + ahead[task]))
        processor[task], start[task], finish[task] = chosen, begins[chosen], ends[chosen]
        bisect.insort(busy[chosen], (float(start[task]), float(finish[task])))
    return GraphSchedule(processor, start, finish, priority)


def _gap(busy: list[tuple[float, float]], earliest: float, length: float) -> float:
    """The first moment from ``earliest`` at which ``length`` seconds are free."""
    if not np.isfinite(length):
        return earliest
    moment = earliest
    for begins, ends in busy:
        if moment + length <= begins:
            break
        moment = max(moment, ends)
    return float(moment)
