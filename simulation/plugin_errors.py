"""Whose code failed when a simulation fails: the plugin of the policy, the job it was asked about, the place in its file.

Nothing is caught around each call of a plugin: that would cost every cycle. What the error's frames hold is read once it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from meridian.errors import InvalidArgumentError, MeridianError
from services.scheduler.core import admission, filters, planning, preemption, queue, scores
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand
from services.scheduler.core.waiting_unit import PendingUnit
from simulation.setting import Setting
from simulation.world import World

_OWN = ("services.", "simulation.")


class PluginFailedError(InvalidArgumentError):
    """A plugin of a policy raised an error while the policy was simulated."""

    code = "PLUGIN_FAILED"
    title = "A plugin failed"


class Watched:
    """What runs inside `plugin_errors`; ``world`` is None until it is built."""

    world: World | None = None


@contextmanager
def plugin_errors(setting: Setting, seed: int | None = None) -> Iterator[Watched]:
    """Raises `PluginFailedError` for what a plugin of the policy raises inside: it names the policy, the plugin, the job, the
    virtual time and the seed. Without a seed it is the trial of each job on the empty network, whose time means nothing.

    An error that no plugin is part of goes on as it is: it is one of the simulator.
    """
    watched = Watched()
    try:
        yield watched
    except Exception as error:
        found = failed_plugin(error, setting.policy)
        if found is None:
            raise
        frames, what = found
        if seed is None:
            run, when = f"policy {setting.name}", "on the empty network, before the first run"
        else:
            run = f"policy {setting.name}, seed {seed}"
            when = (
                "before the first job" if watched.world is None else f"at {watched.world.now_s:.15g} s of virtual time"
            )
        raise PluginFailedError(
            f"{run}: {what} {when}{_job(frames, watched.world)}: {_words(error, frames)}"
        ) from error


def failed_plugin(error: BaseException, policy: Policy) -> tuple[list[FrameType], str] | None:
    """The frames of an error from the innermost out, and what failed: the plugin of the policy in whose code it was raised.

    Another error around plugins that Meridian does not bring is put down to their answers; None where the policy has none of them
    and for errors that say themselves what is wrong.
    """
    frames = []
    step = error.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    frames.reverse()
    plugins = _plugins(policy)
    for frame in frames:
        for label, kind in plugins.items():
            if isinstance(frame.f_locals.get("self"), kind):
                return frames, f"the {label} failed"
    for frame in frames:
        # What a limit opens is no plugin, but its code is beside the limit's.
        for label, kind in plugins.items():
            if frame.f_globals.get("__name__") == kind.__module__:
                return frames, f"the {label} failed"
    if isinstance(error, MeridianError):
        return None
    others = [label for label, kind in plugins.items() if not kind.__module__.startswith(_OWN)]
    return (frames, f"an answer of the {' or '.join(others)} could not be used") if others else None


def _plugins(policy: Policy) -> dict[str, type]:
    named: tuple[tuple[str, Iterable[str], Mapping[str, object]], ...] = (
        ("filter", policy.filters, filters.FILTERS),
        ("score", [name for name, _ in policy.scores], scores.SCORES),
        ("order", policy.order, queue.ORDERS),
        ("limit", policy.limits, admission.LIMITS),
        ("preemption", policy.preemptions, preemption.PREEMPTIONS),
        ("planner", [policy.planner], planning.PLANNERS),
    )
    return {f"{kind} {name!r}": type(known[name]) for kind, names, known in named for name in names if name in known}


def _job(frames: list[FrameType], world: World | None) -> str:
    """Which job the innermost frame that is about one is about; else one of those with the demand that it is about."""
    values = [value for frame in frames for value in frame.f_locals.values()]
    asked = next((value for value in values if isinstance(value, PendingUnit)), None)
    if asked is not None:
        return f", job {asked.key.job_id}"
    if world is None:
        return ""
    demand = next((value for value in values if isinstance(value, Demand)), None)
    waiting = list(world.cluster.pending)
    alike = next((unit.key.job_id for unit in waiting if unit.demand is demand), "")
    return f", job {alike}" if alike else f", {len(waiting)} jobs waiting and {len(world.cluster.running)} running"


def _words(error: Exception, frames: list[FrameType]) -> str:
    if isinstance(error, MeridianError):
        return error.detail
    code, line = frames[0].f_code, error.__traceback__
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    place = f"{Path(code.co_filename).name}, line {line.tb_lineno if line else 0}, {code.co_qualname}"
    return f"{type(error).__name__}: {error} ({place})"
