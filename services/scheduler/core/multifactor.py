"""Multi-factor job priority after Slurm's priority/multifactor: a weighted sum of factors between 0 and 1, and an
addition that Slurm lacks, a bound on starvation.

  priority = w_age x age + w_fair_share x fair_share + w_size x size + w_partition x partition + w_qos x qos
             + sum over resources r of w_tres[r] x requested[r] / total[r] - nice

Stability in time. Two waiting jobs that differ in their age only (one tenant, hence one fair share; one size, partition,
qos and request) never change places: the difference is w_age x (difference of ages) / max_age_s while both are below the
cap, shrinks to 0 as they reach it, and is never reversed, so ties are to be broken by age, then id. Jobs that differ
otherwise keep their order, too, as long as both are below the cap and their other factors stay; it may change as the
older one reaches the cap, and when one becomes protected. All parts but the fair share depend on the job alone, and the
fair share on its own tenant alone, as the lanes of queue.py demand.

Starvation. With a capped age, a job can wait for ever behind a stream of new ones whose other factors are greater. With
``starvation_age_s`` = X, a job that has waited for X is *protected*: it stands above every unprotected job whose qos is
at most ``protected_qos`` = p, and protected jobs stand by their age, the oldest first. So whatever arrives later with
qos <= p cannot hold it up beyond `start_bound_s`, provided that the scheduler starts nothing ahead of a protected job
which does not fit yet (or only what does not delay it: backfill with a reservation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import PolicyError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much a factor of 1 counts. PolicyError names a negative, infinite or NaN weight."""

    age: float = 1000.0
    fair_share: float = 1000.0
    size: float = 0.0
    partition: float = 0.0
    qos: float = 1000.0
    tres: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("age", "fair_share", "size", "partition", "qos"):
            _check_weight(name, getattr(self, name))
        for name, weight in self.tres.items():
            _check_weight(f"tres.{name}", weight)


@dataclass(frozen=True, slots=True)
class Multifactor:
    """A policy. ``max_age_s``: when the age factor reaches 1 (Slurm: PriorityMaxAge, 7 days).

    ``total_size``: the size that counts as 1 (all devices). ``favor_small``: the size factor is 1 - size / total instead
    of size / total. ``tres_totals``: for each resource with a weight, the amount that counts as 1. ``starvation_age_s``
    (None: no protection, as in Slurm) and ``protected_qos`` (a qos factor): see the module. PolicyError names the field.
    """

    weights: Weights = field(default_factory=Weights)
    max_age_s: float = 7 * 86400.0
    total_size: float = 1.0
    favor_small: bool = False
    tres_totals: Mapping[str, float] = field(default_factory=dict)
    starvation_age_s: float | None = None
    protected_qos: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_age_s", "total_size"):
            _check_positive(name, getattr(self, name))
        for name in self.weights.tres:
            if name not in self.tres_totals:
                raise PolicyError(f"tres_totals.{name} is missing; weights.tres names it")
        for name, total in self.tres_totals.items():
            _check_positive(f"tres_totals.{name}", total)
        if self.starvation_age_s is not None:
            _check_positive("starvation_age_s", self.starvation_age_s)
        if not 0 <= self.protected_qos <= 1:
            raise PolicyError(f"protected_qos must be between 0 and 1, not {self.protected_qos!r}")


@dataclass(frozen=True, slots=True, eq=False)
class WaitingJobs:
    """J waiting jobs: each field is (J,). ``fair_share``, ``partition`` and ``qos`` are factors between 0 and 1 (priorities
    divided by the highest one), ``size`` is in the unit of ``Multifactor.total_size``, ``tres`` are requested amounts by
    resource; ``nice`` lowers the priority (unlike Slurm's it is never negative: favours are a matter of qos). What is left out is 0."""

    queued_at_s: npt.ArrayLike
    fair_share: npt.ArrayLike = 0.0
    size: npt.ArrayLike = 0.0
    partition: npt.ArrayLike = 0.0
    qos: npt.ArrayLike = 0.0
    tres: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    nice: npt.ArrayLike = 0.0


def priority(jobs: WaitingJobs, policy: Multifactor, now_s: float) -> Floats:
    """Priorities (J,) at ``now_s``, the greatest first in the queue; O(J). Errors as in `breakdown`."""
    parts = breakdown(jobs, policy, now_s)
    total = np.zeros_like(parts["age"])
    for part in parts.values():
        total += part
    if policy.starvation_age_s is None:
        return total
    age = now_s - np.asarray(jobs.queued_at_s, dtype=np.float64)
    guarded = np.maximum(age, policy.starvation_age_s)
    # Rises with age from the threshold without ever reaching the next whole span, whatever the factors of the job.
    protected = _threshold(policy) + _span(policy) * (1.0 - policy.starvation_age_s / guarded)
    result: Floats = np.where(age >= policy.starvation_age_s, np.maximum(protected, total), total)
    return result


def breakdown(jobs: WaitingJobs, policy: Multifactor, now_s: float) -> dict[str, Floats]:
    """The weighted parts (J,) of the sum by factor, "tres.<resource>" and "nice" included (Slurm: sprio). A protected
    job's priority is not their sum.

    Jobs queued after ``now_s`` have age 0. InvalidArgumentError names the field that is NaN, out of range or too long.
    """
    weights = policy.weights
    queued = np.atleast_1d(np.asarray(jobs.queued_at_s, dtype=np.float64))
    shape = queued.shape
    if not np.all(np.isfinite(queued)) or not math.isfinite(now_s):
        raise InvalidArgumentError("queued_at_s and now_s must be finite")
    size = np.minimum(_column("size", jobs.size, shape, math.inf) / policy.total_size, 1.0)
    parts = {
        "age": weights.age * np.clip((now_s - queued) / policy.max_age_s, 0.0, 1.0),
        "fair_share": weights.fair_share * _column("fair_share", jobs.fair_share, shape, 1.0),
        "size": weights.size * (1.0 - size if policy.favor_small else size),
        "partition": weights.partition * _column("partition", jobs.partition, shape, 1.0),
        "qos": weights.qos * _column("qos", jobs.qos, shape, 1.0),
    }
    for name, weight in weights.tres.items():
        amount = _column(f"tres.{name}", jobs.tres.get(name, 0.0), shape, math.inf)
        parts[f"tres.{name}"] = weight * np.minimum(amount / policy.tres_totals[name], 1.0)
    parts["nice"] = -_column("nice", jobs.nice, shape, math.inf)
    return parts


def start_bound_s(older: int, max_duration_s: float, policy: Multifactor, side_by_side: int = 1) -> float:
    """The longest that a job can wait, whatever arrives after it with qos <= ``protected_qos``: seconds from queueing.

    ``older``: jobs that wait already when it is queued. No job runs longer than ``max_duration_s``. ``side_by_side``: how
    many jobs of the greatest allowed size fit at once (capacity // greatest size). Infinite without protection.

    X + ceil((older + 1) / side_by_side) x max_duration_s: after X the job and all older ones are protected, and they start
    in order of age. In each stretch of max_duration_s at least ``side_by_side`` of them start: at its end only jobs run
    that started within it, and were those fewer, the next would fit.
    """
    if older < 0 or side_by_side < 1 or not max_duration_s >= 0:
        raise InvalidArgumentError("older, max_duration_s must be at least 0, side_by_side at least 1")
    if policy.starvation_age_s is None:
        return math.inf
    return policy.starvation_age_s + math.ceil((older + 1) / side_by_side) * max_duration_s


def _threshold(policy: Multifactor) -> float:
    """What no unprotected job of a qos up to the protected one can reach."""
    weights = policy.weights
    others = weights.age + weights.fair_share + weights.size + weights.partition + sum(weights.tres.values())
    return others + weights.qos * policy.protected_qos + _span(policy)


def _span(policy: Multifactor) -> float:
    return max(policy.weights.age, 1.0)


def _column(name: str, values: npt.ArrayLike, shape: tuple[int, ...], high: float) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0) & (array <= high) & np.isfinite(array)):
        raise InvalidArgumentError(f"{name} must be between 0 and {high} and finite")
    if array.shape not in {(), shape}:
        raise InvalidArgumentError(f"{name} has shape {array.shape}, queued_at_s {shape}")
    return np.broadcast_to(array, shape)


def _check_weight(name: str, weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise PolicyError(f"weights.{name} must be at least 0 and finite, not {weight!r}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise PolicyError(f"{name} must be above 0 and finite, not {value!r}")
