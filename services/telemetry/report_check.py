"""A report and what is known of its domain in, an observation and the new knowledge out. No clock, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from services.telemetry.inventory_check import check_inventory
from services.telemetry.issues import WHOLE_NODE, Issue, IssueKind
from services.telemetry.reading_check import (
    HistoryRow,
    Known,
    Limits,
    ReadingCheck,
    SeriesOfNode,
    devices_of,
    quiet_until,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a report. ``observation`` None: the report as a whole was refused, for ``issues``."""

    observation: telemetry_pb2.ObservationRecorded | None
    issues: tuple[Issue, ...]
    changed: Mapping[str, SeriesOfNode]
    history: tuple[HistoryRow, ...]
    # Before this time (seconds since 1970) nothing of the domain can be missing; 0: not known.
    quiet_until_s: float = 0.0


def refusal(report: resource_pb2.ResourceReported, newest_incarnation: int | None) -> Issue | None:
    """Why the report as a whole cannot be taken: an agent that was replaced, or no inventory of its own domain."""
    if newest_incarnation is not None and report.incarnation < newest_incarnation:
        detail = f"incarnation {report.incarnation} of the agent after {newest_incarnation}: the report is refused"
        return Issue(IssueKind.STALE, "", WHOLE_NODE, "report.incarnation", detail)
    if not report.HasField("inventory"):
        detail = "the report has no inventory, so its readings cannot be placed"
        return Issue(IssueKind.UNKNOWN_DEVICE, "", WHOLE_NODE, "report.inventory", detail)
    stated = report.inventory.domain_id
    if stated and stated != report.domain_id:
        detail = f"an inventory of domain {stated!r} in a report of {report.domain_id!r}"
        return Issue(IssueKind.UNKNOWN_DEVICE, "", WHOLE_NODE, "report.inventory.domain_id", detail)
    return None


def _clock_problem(report: resource_pb2.ResourceReported, now_s: float, limits: Limits) -> list[Issue]:
    """An agent whose clock is ahead; one that is behind cannot be told from a report that waited."""
    ahead_s = report.reported_at.seconds + report.reported_at.nanos * 1e-9 - now_s
    if ahead_s <= limits.clock_skew_s:
        return []
    detail = f"the clock of agent {report.agent_id[:128]!r} is {ahead_s:.1f} s ahead of ours"
    return [Issue(IssueKind.CLOCK_SKEW, "", WHOLE_NODE, "report.reported_at", detail)]


def check_report(
    report: resource_pb2.ResourceReported,
    known: Known,
    claimed_elsewhere: Mapping[str, str],
    newest_incarnation: int | None,
    now_s: float,
    limits: Limits,
    history_interval_s: float,
    quiet_until_s: float = 0.0,
) -> Verdict:
    """Validate a report. ``known``: the series of the domain by node; ``now_s``: seconds since 1970; ``quiet_until_s``: of the
    verdict on the report before, so that not all that is known is looked through for what is missing each time."""
    part = report.part if report.HasField("part") else None
    # What is wrong with a report as a whole is said once.
    first = part is None or part.number <= 1
    refused = refusal(report, newest_incarnation)
    if refused is not None:
        return Verdict(None, (refused,) if first else (), {}, ())
    inventory, issues = check_inventory(report.inventory, report.domain_id, claimed_elsewhere)
    check = ReadingCheck(devices_of(inventory), known, now_s, limits, history_interval_s)
    check.run(report.readings)
    # Later than any that can be given means that a clock was set back.
    if not now_s < quiet_until_s <= quiet_until(now_s):
        quiet_until_s = 0.0
        if part is None:
            quiet_until_s = check.missing()
        else:
            check.missing_of_listed(domain=first)
    issues += [*check.issues, *(_clock_problem(report, now_s, limits) if first else ())]
    observation = telemetry_pb2.ObservationRecorded(
        domain_id=report.domain_id,
        agent_id=report.agent_id,
        incarnation=report.incarnation,
        issues=[issue.message() for issue in issues],
    )
    if part is not None:
        observation.part.CopyFrom(part)
    observation.inventory.CopyFrom(inventory)
    observation.readings.extend(check.standing)
    observation.observed_at.FromNanoseconds(int(now_s * 1e9))
    quiet_until_s = min(quiet_until_s, quiet_until(check.oldest_s))
    return Verdict(observation, tuple(issues), check.changed, tuple(check.history), quiet_until_s)
