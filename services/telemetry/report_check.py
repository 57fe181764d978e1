"""A report and what is known of its domain in, an observation and the new knowledge out. No clock, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from services.telemetry.inventory_check import check_inventory
from services.telemetry.issues import WHOLE_NODE, Issue, IssueKind
from services.telemetry.reading_check import HistoryRow, Limits, ReadingCheck, Series, SeriesKey, devices_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a report. ``observation`` None: the report as a whole was refused, for ``issues``."""

    observation: telemetry_pb2.ObservationRecorded | None
    issues: tuple[Issue, ...]
    changed: Mapping[SeriesKey, Series]
    history: tuple[HistoryRow, ...]


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
    known: Mapping[SeriesKey, Series],
    claimed_elsewhere: Mapping[str, str],
    newest_incarnation: int | None,
    now_s: float,
    limits: Limits,
    history_interval_s: float,
) -> Verdict:
    """Validate a report. ``known``: the series of the domain; ``now_s``: seconds since 1970."""
    part = report.part if report.HasField("part") else None
    # What is wrong with a report as a whole is said once.
    first = part is None or part.number <= 1
    refused = refusal(report, newest_incarnation)
    if refused is not None:
        return Verdict(None, (refused,) if first else (), {}, ())
    inventory, issues = check_inventory(report.inventory, report.domain_id, claimed_elsewhere)
    check = ReadingCheck(devices_of(inventory), known, now_s, limits, history_interval_s)
    check.run(report.readings)
    if part is None:
        check.missing()
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
    return Verdict(observation, tuple(issues), check.changed, tuple(check.history))
