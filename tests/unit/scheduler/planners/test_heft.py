"""HEFT and PEFT against the example graphs of their papers, and on degenerate graphs."""

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.heft import heft, optimistic_cost_table, peft, upward_rank

# Topcuoglu, Hariri, Wu 2002, figure 2: costs of the ten tasks on three processors, and the edges (numbered from 1).
HEFT_COST = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
HEFT_EDGES = [
    (1, 2, 18),
    (1, 3, 12),
    (1, 4, 9),
    (1, 5, 11),
    (1, 6, 14),
    (2, 8, 19),
    (2, 9, 16),
    (3, 7, 23),
    (4, 8, 27),
    (4, 9, 23),
    (5, 9, 13),
    (6, 8, 15),
    (7, 10, 17),
    (8, 10, 11),
    (9, 10, 13),
]
# Arabnejad, Barbosa 2014, figure 1 and table 5 (OCT).
PEFT_COST = [
    [22, 21, 36],
    [22, 18, 18],
    [32, 27, 43],
    [7, 10, 4],
    [29, 27, 35],
    [26, 17, 24],
    [14, 25, 30],
    [29, 23, 36],
    [15, 21, 8],
    [13, 16, 33],
]
PEFT_EDGES = [
    (1, 2, 17),
    (1, 3, 31),
    (1, 4, 29),
    (1, 5, 13),
    (1, 6, 7),
    (2, 8, 3),
    (2, 9, 30),
    (3, 7, 16),
    (4, 8, 11),
    (4, 9, 7),
    (5, 9, 57),
    (6, 8, 5),
    (7, 10, 9),
    (8, 10, 42),
    (9, 10, 7),
]
PEFT_TABLE = [
    [64, 68, 86],
    [42, 39, 42],
    [27, 41, 43],
    [42, 39, 50],
    [28, 37, 28],
    [42, 39, 44],
    [13, 16, 22],
    [13, 16, 33],
    [13, 16, 20],
    [0, 0, 0],
]


def graph(cost, edges):
    table = np.array(edges)
    return np.array(cost, dtype=float), table[:, :2] - 1, table[:, 2].astype(float)


def assert_valid(schedule, cost, edges, transfer):
    assert np.allclose(schedule.finish_s - schedule.start_s, cost[np.arange(len(cost)), schedule.processor])
    for (first, second), wait in zip(edges, transfer, strict=True):
        away = schedule.processor[first] != schedule.processor[second]
        assert schedule.start_s[second] >= schedule.finish_s[first] + wait * away - 1e-9
    for processor in range(cost.shape[1]):
        mine = np.flatnonzero(schedule.processor == processor)
        mine = mine[np.argsort(schedule.start_s[mine])]
        assert (schedule.start_s[mine][1:] >= schedule.finish_s[mine][:-1] - 1e-9).all()


def test_heft_ranks_and_makespan_of_its_paper():
    cost, edges, transfer = graph(HEFT_COST, HEFT_EDGES)
    rank = upward_rank(cost, edges, transfer)
    published = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert rank == pytest.approx(published, abs=1e-3)
    schedule = heft(cost, edges, transfer)
    assert schedule.makespan_s == 80
    assert_valid(schedule, cost, edges, transfer)


def test_peft_table_ranks_and_schedule_of_its_paper():
    cost, edges, transfer = graph(PEFT_COST, PEFT_EDGES)
    assert optimistic_cost_table(cost, edges, transfer).tolist() == PEFT_TABLE
    schedule = peft(cost, edges, transfer)
    assert schedule.priority == pytest.approx(np.mean(PEFT_TABLE, axis=1))
    # Table 6 of the paper: processor and finish of every task.
    assert schedule.processor.tolist() == [0, 0, 0, 0, 2, 1, 0, 1, 2, 1]
    assert schedule.finish_s.tolist() == [22, 51, 83, 29, 70, 46, 97, 77, 89, 122]
    assert schedule.makespan_s == 122
    assert_valid(schedule, cost, edges, transfer)


def test_heft_on_the_graph_of_the_peft_paper_takes_133():
    cost, edges, transfer = graph(PEFT_COST, PEFT_EDGES)
    schedule = heft(cost, edges, transfer)
    assert schedule.makespan_s == 133
    assert schedule.finish_s.tolist() == [21, 60, 75, 56, 48, 52, 100, 96, 113, 133]


@pytest.mark.parametrize("plan", [heft, peft])
def test_a_gap_is_filled(plan):
    # Task 0 (1 s) -> 2 (10 s on both) with transfer 9: on the same processor it starts at 1. Task 1 is independent and
    # long on processor 1, so processor 0 gets it behind; with a transfer of 0 both run at once.
    cost = np.array([[1.0, 1.0], [2.0, 50.0], [10.0, 10.0]])
    schedule = plan(cost, [[0, 2]], [0.0])
    assert_valid(schedule, cost, [[0, 2]], [0.0])
    assert schedule.makespan_s == 11


@pytest.mark.parametrize("plan", [heft, peft])
@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_give_valid_schedules(plan, seed):
    random = np.random.default_rng(seed)
    cost = random.uniform(1, 20, (30, 4))
    cost[random.random((30, 4)) < 0.2] = np.inf
    cost[:, 0] = random.uniform(1, 20, 30)
    edges = np.array([(a, b) for a in range(30) for b in range(a + 1, 30) if random.random() < 0.1])
    transfer = random.uniform(0, 10, len(edges))
    schedule = plan(cost, edges, transfer)
    assert_valid(schedule, cost, edges, transfer)
    assert np.isfinite(schedule.makespan_s)


def test_links_of_different_speed_are_used():
    # The child runs only on 1 or 2; the link to 2 is three times as slow: 1 + 5 + 4 on processor 1, 1 + 15 + 1 on 2.
    cost = np.array([[1.0, np.inf, np.inf], [np.inf, 4.0, 1.0]])
    link = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    schedule = heft(cost, [[0, 1]], [5.0], link)
    assert schedule.processor.tolist() == [0, 1]
    assert schedule.makespan_s == 10
    assert heft(cost, [[0, 1]], [5.0]).makespan_s == 7


def test_no_tasks():
    schedule = heft(np.zeros((0, 3)), [], [])
    assert schedule.makespan_s == 0
    assert schedule.processor.shape == (0,)
    assert peft(np.zeros((0, 3)), [], []).makespan_s == 0


@pytest.mark.parametrize(
    ("cost", "edges", "transfer", "message"),
    [
        ([[1.0, np.nan]], [], [], r"cost\[0, 1\]: is NaN"),
        ([[np.inf, np.inf]], [], [], r"cost\[0\]: the task runs on no processor"),
        ([[1.0], [1.0]], [[0, 1], [1, 0]], [0.0, 0.0], "edges: task 0 is on or behind a cycle"),
        ([[1.0], [1.0]], [[0, 2]], [0.0], r"edges\[0, 1\]"),
        ([[1.0], [1.0]], [[0, 1]], [-1.0], r"transfer\[0\]"),
        ([[1.0], [1.0]], [[0, 1]], [], "transfer: shape"),
    ],
)
def test_bad_input_is_named(cost, edges, transfer, message):
    for plan in (heft, peft):
        with pytest.raises(PolicyError, match=message):
            plan(cost, edges, transfer)
