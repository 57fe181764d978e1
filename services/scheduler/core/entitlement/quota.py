"""Quotas of a tree of queues (organisation, team, user): what a queue may take of its own, and what it may borrow.

The semantics are those of Kueue's hierarchical cohorts (KEP-79, documentation of ClusterQueue and Cohort). For queue x and
one resource:

  subtree(x) = nominal(x) + sum over children c of (subtree(c) - local(c))    what the queues below x own together
  local(x)   = max(0, subtree(x) - lending_limit(x))                          the part that its parent never sees
  counted(x) = own usage of x + sum over children c of max(0, counted(c) - local(c))

A state is within quota when counted(x) <= subtree(x) + borrowing_limit(x) at every queue, with a borrowing limit of 0 at
the root. An interior queue's nominal quota is a pool for the queues below it, on top of theirs; a limit that is left out is
none. Differences from Kueue: interior queues may hold usage themselves, and a queue need not name a resource in order to
borrow it (its own quota of it is then 0). A resource that no queue names is not limited. There is exactly one root.

What is declared of queues is checked in `queues.py`; amounts are those of `amounts.py`, integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from meridian.errors import ConflictError, InvalidArgumentError
from services.scheduler.core.entitlement.amounts import RUNNING, Quantities, quantity
from services.scheduler.core.entitlement.queues import QueueSpec, check, top_down

_Ranked = tuple[tuple[float, ...], str, int, list[int]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may be charged now.

    ``borrowing``: it would take the queue beyond its own quota; ``covered_by`` is then the lowest queue above whose quota
    covers it. When not ``ok``: ``blocked_at`` is the lowest queue that forbids it, ``resource`` the first resource that
    lacks, ``available`` what the requesting queue could have of it (`quantity`; negative after over-commitment).
    """

    ok: bool
    borrowing: bool = False
    covered_by: str = ""
    blocked_at: str = ""
    resource: str = ""
    available: int = 0


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take ``amount`` (`quantity`) of ``resource`` back from the units of ``queue``."""

    queue: str
    resource: str
    amount: int


@dataclass(frozen=True, slots=True)
class _Debtors:
    """Who owes a branch up to ``claim``, in order, each with the queues from itself up to below the branching point."""

    claim: int
    ranked: list[tuple[int, list[int]]]


class QuotaTree:
    """Quotas and usage of a tree of queues. Every operation but `reclaimable` takes O(depth x resources).

    Steps of `admits` and `charge` for one resource:
    1. At the queue: what is counted there grows by the amount.
    2. The part of the growth that its local quota (kept back by the lending limit) does not cover goes on to the parent.
    3. `admits` stops at the first queue that would exceed its quota and borrowing limit; `charge` checks nothing, because
       usage must be kept true even after a quota was cut. Call `admits` first.
    """

    def __init__(self, specs: Sequence[QueueSpec]) -> None:
        """PolicyError names the queue and the field: a name twice or empty, an unknown parent, a cycle, no root or two, a
        limit at the root, a negative, infinite or NaN quota, limit or weight."""
        order, parents = top_down(specs)
        for spec in order:
            check(spec)
        self._names = [spec.name for spec in order]
        self._index = {name: node for node, name in enumerate(self._names)}
        self._parent = [self._index.get(parents[name], -1) for name in self._names]
        self._children: list[list[int]] = [[] for _ in order]
        for node, parent in enumerate(self._parent):
            if parent >= 0:
                self._children[parent].append(node)
        self.resources = tuple(
            dict.fromkeys(r for s in order for part in (s.nominal, s.borrowing_limit, s.lending_limit) for r in part)
        )
        """Names of the limited resources; verdicts look at them in this order."""
        self._column = {name: column for column, name in enumerate(self.resources)}
        self._weight = [spec.weight for spec in order]
        self._max_running = [spec.max_running for spec in order]
        self._nominal = [[quantity(r, spec.nominal.get(r, 0.0)) for r in self.resources] for spec in order]
        self._borrowing = [[_limit(spec.borrowing_limit, r) for r in self.resources] for spec in order]
        lending = [[_limit(spec.lending_limit, r) for r in self.resources] for spec in order]
        self._subtree = [list(row) for row in self._nominal]
        self._local = [[0] * len(self.resources) for _ in order]
        for node in reversed(range(len(order))):
            for column, limit in enumerate(lending[node]):
                total = self._subtree[node][column]
                self._local[node][column] = 0 if limit is None else max(0, total - limit)
                if node:
                    self._subtree[self._parent[node]][column] += total - self._local[node][column]
        self._own = [[0] * len(self.resources) for _ in order]
        self._counted = [[0] * len(self.resources) for _ in order]
        self._held = [[0] * len(self.resources) for _ in order]
        self._running = [0] * len(order)
        self._own_running = [0] * len(order)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of all queues, each after its parent."""
        return tuple(self._names)

    def path(self, queue: str) -> tuple[str, ...]:
        """The queue and all above it, the root last."""
        return tuple(self._names[node] for node in self._path(self._node(queue)))

    def usage(self, queue: str) -> dict[str, int]:
        """What the queue and all below it hold, by resource (`quantity`)."""
        return dict(zip(self.resources, self._held[self._node(queue)], strict=True))

    def running(self, queue: str) -> int:
        """Units charged to the queue and all below it."""
        return self._running[self._node(queue)]

    def quota(self, queue: str) -> dict[str, int]:
        """What the queue and those below it own together: subtree(x), without what lending limits keep back below it."""
        return dict(zip(self.resources, self._subtree[self._node(queue)], strict=True))

    def available(self, queue: str) -> dict[str, int]:
        """The most that the queue could take now, of its own or borrowed, by resource (`quantity`). Negative where more
        was charged than the quotas allow."""
        node = self._node(queue)
        return {name: self._available(node, column) for column, name in enumerate(self.resources)}

    def borrowed(self, queue: str) -> dict[str, int]:
        """What the queue and those below it hold beyond their own quota, by resource (`quantity`)."""
        node = self._node(queue)
        return {name: max(0, self._over(node, column)) for column, name in enumerate(self.resources)}

    def admits(self, queue: str, amounts: Quantities) -> Verdict:
        """Whether one unit that takes ``amounts`` (`request`) may be charged to the queue now."""
        node = self._node(queue)
        at = self._full(node, self._running, self._max_running)
        if at >= 0:
            return Verdict(ok=False, blocked_at=self._names[at], resource=RUNNING)
        covered = node
        for column, amount in self._columns(amounts):
            blocked, pool = self._climb(node, column, amount)
            if blocked >= 0:
                return Verdict(
                    ok=False,
                    blocked_at=self._names[blocked],
                    resource=self.resources[column],
                    available=self._available(node, column),
                )
            # Queues are numbered from the root downwards, so on one path the smaller number lies higher.
            covered = min(covered, pool)
        return Verdict(ok=True, borrowing=covered != node, covered_by=self._names[covered])

    def reclaimable(
        self, queue: str, amounts: Quantities, spared: Collection[tuple[str, str]] = ()
    ) -> tuple[Reclaim, ...]:
        """From which queues, in which order and how much to take back so that a request fits that is within quota.
        ``spared`` are (queue, resource) pairs of which nothing can be taken.

        Empty when the request fits, when it is itself beyond quota at every level, or when taking back all that is
        borrowed would not make room: nobody is preempted in vain. The order is not renewed between takes, and whoever
        stops whole units should ask again after each. O(queues that borrow x depth).

        Steps for a resource of which too little is available:
        1. The request must stay within the quota of the queue or of one above it. From there upwards the branch has a
           claim at each level: what its own quota exceeds its usage by.
        2. Debtors at that level are the queues of other branches that hold more than their own quota and so does every
           queue between them and the branching point: no one loses what is covered by the quota of its own branch.
        3. The outermost level pays first, up to the claim; within it the branch most over its share (greatest part of the root's capacity
           borrowed, divided by the weight), and so on downwards; names break ties.
        4. Each is tried by taking it off and looking at what is then available; what does not help is passed over.
        """
        node = self._node(queue)
        if self._full(node, self._running, self._max_running) >= 0:
            return ()
        plan: list[Reclaim] = []
        for column, amount in self._columns(amounts):
            resource = self.resources[column]
            kept = {self._node(name) for name, of in spared if of == resource}
            taken = self._take_back(node, column, amount, kept)
            if taken is None:
                return ()
            plan += [Reclaim(self._names[debtor], resource, part) for debtor, part in taken]
        return tuple(plan)

    # -- changing --------------------------------------------------------------------------------------------------

    def charge(self, queue: str, amounts: Quantities, units: int = 1) -> None:
        """The queue holds ``amounts`` more, for ``units`` more running units (0 for a reservation)."""
        node = self._node(queue)
        if units < 0:
            raise InvalidArgumentError(f"units must be at least 0, not {units}")
        for column, amount in self._columns(amounts):
            self._shift(node, column, amount)
        _count(self._path(node), self._running, self._own_running, units)

    def refund(self, queue: str, amounts: Quantities, units: int = 1) -> None:
        """The inverse of `charge`: leaves the very state before it. ConflictError, and no change, when the queue itself
        holds less."""
        node = self._node(queue)
        columns = self._columns(amounts)
        for column, amount in columns:
            if amount > self._own[node][column]:
                held = self._own[node][column]
                raise ConflictError(f"queue {queue!r} holds {held} of {self.resources[column]}, not {amount}")
        if not 0 <= units <= self._own_running[node]:
            raise ConflictError(f"queue {queue!r} has {self._own_running[node]} running units, not {units}")
        for column, amount in columns:
            self._shift(node, column, -amount)
        _count(self._path(node), self._running, self._own_running, -units)

    # -- one resource ----------------------------------------------------------------------------------------------

    def _node(self, queue: str) -> int:
        try:
            return self._index[queue]
        except KeyError:
            raise InvalidArgumentError(f"there is no queue {queue!r}") from None

    def _path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self._parent[node]
        return path

    def _columns(self, amounts: Quantities) -> list[tuple[int, int]]:
        for name, amount in amounts.items():
            if not isinstance(amount, int) or amount < 0:
                raise InvalidArgumentError(f"{name} must be an integer of at least 0, not {amount!r}")
        return [(self._column[name], amounts[name]) for name in self.resources if amounts.get(name)]

    def _full(self, node: int, counts: list[int], limits: list[int | None]) -> int:
        """The lowest queue on the path whose count has reached its limit; -1 when there is none."""
        for at in self._path(node):
            limit = limits[at]
            if limit is not None and counts[at] >= limit:
                return at
        return -1

    def _over(self, node: int, column: int) -> int:
        return self._counted[node][column] - self._subtree[node][column]

    def _local_free(self, node: int, column: int) -> int:
        return max(0, self._local[node][column] - self._counted[node][column])

    def _climb(self, node: int, column: int, amount: int) -> tuple[int, int]:
        """(The lowest queue that forbids the amount, or -1; the lowest queue whose own quota covers it, or -1)."""
        covered = -1
        while True:
            over = self._over(node, column) + amount
            if covered < 0 and over <= 0:
                covered = node
            parent = self._parent[node]
            limit = 0 if parent < 0 else self._borrowing[node][column]
            if limit is not None and over > limit:
                return node, covered
            amount -= self._local_free(node, column)
            if parent < 0 or amount <= 0:
                return -1, covered
            node = parent

    def _available(self, node: int, column: int) -> int:
        local = 0
        most: int | None = None
        for at in self._path(node):
            limit = 0 if self._parent[at] < 0 else self._borrowing[at][column]
            if limit is not None:
                here = local + limit - self._over(at, column)
                most = here if most is None else min(most, here)
            local += self._local_free(at, column)
        assert most is not None
        return most

    def _shift(self, node: int, column: int, delta: int) -> None:
        self._own[node][column] += delta
        grown = delta
        while node >= 0:
            self._held[node][column] += delta
            local = self._local[node][column]
            before = max(0, self._counted[node][column] - local)
            self._counted[node][column] += grown
            grown = max(0, self._counted[node][column] - local) - before
            node = self._parent[node]

    # -- taking back -----------------------------------------------------------------------------------------------

    def _take_back(
        self, node: int, column: int, amount: int, spared: Collection[int] = ()
    ) -> list[tuple[int, int]] | None:
        """Takes that make room for the amount, in order; None when there is no way. Leaves the state as it was."""
        missing = amount - self._available(node, column)
        if missing <= 0:
            return []
        taken: list[tuple[int, int]] = []
        for debtors in reversed(self._debtors(node, column, amount)):
            claim = debtors.claim
            for debtor, between in debtors.ranked:
                over_own = self._own[debtor][column] - self._nominal[debtor][column]
                part = min([missing, claim, over_own, *(self._over(at, column) for at in between)])
                if part <= 0 or debtor in spared:
                    continue
                self._shift(debtor, column, -part)
                still = amount - self._available(node, column)
                if still < missing:
                    taken.append((debtor, part))
                    missing = still
                    claim -= part
                else:
                    self._shift(debtor, column, part)
        for debtor, part in reversed(taken):
            self._shift(debtor, column, part)
        return taken if missing <= 0 else None

    def _debtors(self, node: int, column: int, amount: int) -> list[_Debtors]:
        """The debtors of each level, the innermost first."""
        levels: list[_Debtors] = []
        entitled = False
        for at in self._path(node)[:-1]:
            parent = self._parent[at]
            entitled = entitled or self._over(at, column) + amount <= 0
            claim = -self._over(at, column)
            if entitled and claim > 0:
                own = self._over_share(self._own[parent], self._nominal[parent], parent)
                ranked: list[_Ranked] = [((-own,), self._names[parent], parent, [])]
                ranked += self._borrowers([child for child in self._children[parent] if child != at], column)
                levels.append(_Debtors(claim, [(debtor, between) for *_, debtor, between in sorted(ranked)]))
            amount = max(0, amount - self._local_free(at, column))
        return levels

    def _borrowers(self, branches: list[int], column: int) -> list[_Ranked]:
        """Queues that are over quota with all above them up to the branches: (rank, name, queue, path to the branch)."""
        found: list[_Ranked] = []
        stack: list[tuple[int, tuple[float, ...], list[int]]] = [(branch, (), []) for branch in branches]
        while stack:
            node, shares, between = stack.pop()
            if self._over(node, column) > 0:
                shares = (*shares, -self._over_share(self._counted[node], self._subtree[node], node))
                between = [*between, node]
                found.append((shares, self._names[node], node, between))
                stack += [(child, shares, between) for child in self._children[node]]
        return found

    def _over_share(self, used: list[int], owned: list[int], node: int) -> float:
        parts = ((used[c] - owned[c]) / total for c, total in enumerate(self._subtree[0]) if total)
        return max(0.0, *parts, 0.0) / self._weight[node]


def _count(path: list[int], counts: list[int], own: list[int], change: int) -> None:
    own[path[0]] += change
    for node in path:
        counts[node] += change


def _limit(limits: Mapping[str, float], resource: str) -> int | None:
    return quantity(resource, limits[resource]) if resource in limits else None
