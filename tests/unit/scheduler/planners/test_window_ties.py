"""Of the plans of least cost the one in which the largest begin first, against all plans."""

from __future__ import annotations

import random
from itertools import product

import pytest

from services.scheduler.planners.window_ties import largest_first

Classes = list[tuple[int, int, int]]
Plan = list[list[int]]


def plans(classes: Classes, room: list[int]) -> list[tuple[int, Plan]]:
    """Cost and plan for all starts of those who can give something back, the largest first; the others smallest first."""
    slots = len(room)
    jobs = [(need, held, which) for which, (need, held, many) in enumerate(classes) for _ in range(many)]
    first = {
        which: next(slot for slot, free in enumerate(room) if free >= need)
        for which, (need, _, _) in enumerate(classes)
    }
    lasting = sorted([job for job in jobs if first[job[2]] + job[1] >= slots], key=lambda job: (job[0], job[2]))
    passing = sorted([job for job in jobs if job not in lasting], key=lambda job: (-job[0] * job[1], job))
    found = []
    for starts in product(range(slots + 1), repeat=len(passing)):
        free, plan = list(room), [[] for _ in classes]
        for (need, held, which), slot in zip(passing, starts, strict=True):
            for cell in range(slot, min(slot + held, slots)):
                free[cell] -= need
            plan[which] += [slot] if slot < slots else []
        if min(free) < 0:
            continue
        cost = sum(starts)
        for need, _, which in lasting:
            slot = next((slot for slot in range(slots) if min(free[slot:]) >= need), slots)
            for cell in range(slot, slots):
                free[cell] -= need
            plan[which] += [slot] if slot < slots else []
            cost += slot
        found.append((cost, [sorted(begins) for begins in plan]))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_first_of_all_plans_of_least_cost(seed: int) -> None:
    draw = random.Random(seed)
    room = sorted(draw.choices(range(1, 9), k=5))
    kinds = {(draw.randint(1, room[-1]), draw.randint(1, 5)) for _ in range(4)}
    classes = [(need, held, 1 + (number == 0)) for number, (need, held) in enumerate(sorted(kinds))]
    every = plans(classes, room)
    cost = min(cost for cost, _ in every)
    assert largest_first(classes, room, cost, 10**6) == next(plan for found, plan in every if found == cost)


def test_no_plan_where_the_search_does_not_end() -> None:
    assert largest_first([(2, 1, 3)], [2, 2, 2], 3, 0) is None
    assert largest_first([(2, 1, 3)], [2, 2, 2], 3, 10) == [[0, 1, 2]]
