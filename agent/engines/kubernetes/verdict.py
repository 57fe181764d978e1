"""What the state of a pod means for its rank. Pure.

Sources: "Pod Lifecycle", "Disruptions", "Node-pressure Eviction", "Images" (ImagePullBackOff) in the documentation of Kubernetes.
"""

from __future__ import annotations

from agent.engines.base import FailureKind
from agent.engines.kubernetes.words import Job, Pod
from agent.engines.local.gang import Cause, RankEnd
from agent.node.rank import WHY_EXITED, WHY_OUT_OF_MEMORY, WHY_STOPPED

# An image that will not be there a moment later either, and one that may.
_NEVER = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_BROKEN = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
_SIGTERM, _SIGKILL, _SIGNALLED = 15, 9, 128
MOST_REASON = 400


def taken_away(pod: Pod) -> str:
    """Why Kubernetes took a pod away whatever its program said (evicted, preempted, its node lost); empty: it did not."""
    if pod.failed[0]:
        return _joined(*pod.failed)
    if pod.disrupted[0]:
        return _joined(*pod.disrupted)
    return ""


def not_startable(pod: Pod, *, waited_s: float, image_patience_s: float, start_timeout_s: float) -> str:
    """Why a container that has had its order for ``waited_s`` will not begin; empty: it may."""
    reason = pod.waits[0]
    said = _joined(*pod.waits)
    if reason in _NEVER:
        return said
    if reason in _PULLING | _BROKEN and waited_s > image_patience_s:
        return said
    if waited_s > start_timeout_s:
        return f"not begun within {start_timeout_s:g} s: {said or pod.phase or 'nothing is told'}"
    return ""


def never_began(pod: Pod) -> str:
    """Why a container ended though its program was never there (no such shell); empty: it was."""
    if pod.end is not None and pod.end.reason in _BROKEN:
        return _joined(pod.end.reason, pod.end.message)
    return ""


def rank_end(pod: Pod, rank: int, tail: str, *, stopped: bool) -> RankEnd:
    """How the program of a pod ended whose container has ended. ``stopped``: it was told to, so what it died of is that."""
    end = pod.end
    assert end is not None
    signal = end.signal or (end.exit_code - _SIGNALLED if end.exit_code in {_SIGNALLED + 9, _SIGNALLED + 15} else None)
    if end.reason == "OOMKilled":
        return RankEnd(rank, None, _SIGKILL, WHY_OUT_OF_MEMORY, tail)
    if signal is not None:
        why = WHY_STOPPED if stopped and signal in {_SIGTERM, _SIGKILL} else WHY_EXITED
        return RankEnd(rank, None, signal, why, tail)
    return RankEnd(rank, end.exit_code, None, WHY_EXITED, tail)


def cause_of(job: Job | None, agent_silence_s: float) -> Cause | None:
    """Why a run ends of which Kubernetes has ended the Job by itself; None: it has not, or its ranks say it."""
    if job is None or job.leaving:
        return Cause(FailureKind.NODE_LOST, "the Job was deleted in Kubernetes")
    if job.suspended:
        said = f": {job.suspension[1]}" if job.suspension[1] else ""
        return Cause(FailureKind.NODE_LOST, f"the Job was suspended in Kubernetes{said}")
    reason, message = job.failed
    if reason == "DeadlineExceeded":
        return Cause(
            FailureKind.LEASE_EXPIRED, f"Kubernetes ended the Job: no sign of the agent for {agent_silence_s:g} s"
        )
    if reason and reason != "BackoffLimitExceeded":
        return Cause(FailureKind.NODE_LOST, f"Kubernetes ended the Job: {_joined(reason, message)}")
    return None


def _joined(reason: str, message: str) -> str:
    return (f"{reason}: {message}" if message else reason)[:MOST_REASON]
