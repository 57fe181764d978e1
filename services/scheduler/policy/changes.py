"""Which policy is in force, over restarts: the last one that was set through the API, else that of the policy file.

Every policy that comes into force is noted with its time and who set it, so that each version in a decision can be looked
up. The policy changes between cycles only: whoever changes it holds the writer's lock of the live scheduler.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from enum import Enum

from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.errors import ConfigurationError
from services.scheduler import store_policies
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.policy.file import stored
from services.scheduler.store_policies import PolicyChange

log = logging.getLogger(__name__)

API, FILE = "api", "file"


class Outcome(Enum):
    """What became of a change."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


def change_to(policy: Policy, now_s: float, *, origin: str, changed_by: str = "", source: str = "") -> PolicyChange:
    """The note that a policy comes into force."""
    body = policy.as_json()
    del body["version"]
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return PolicyChange(policy.version, policy.name, origin, source, text, changed_by, now_s)


def matches(condition: str | None, version: str) -> bool:
    """Whether a header If-Match (RFC 9110, section 13.1.1) holds for the policy of this version; None always does."""
    if condition is None:
        return True
    return any(item.strip() in {"*", f'"{version}"'} for item in condition.split(","))


async def at_start(connection: AsyncConnection, file: Policy, now_s: float, *, from_file: bool) -> Policy:
    """The policy with which a scheduler begins, noted when it is another than before. ``file`` is that of the policy file;
    with ``from_file`` it applies whatever was set through the API.

    ConfigurationError when the policy that was set does not hold any more (a plugin is gone).
    """
    last = await _last(connection)
    if last is None or from_file or last.origin == FILE:
        if last is not None and last.origin == API:
            log.warning(
                "the policy that was set gives way to that of the scheduler's file, as MERIDIAN_SCHEDULER_POLICY_FROM_FILE says; "
                "as long as it says so, no policy that is set outlasts a restart",
                extra={"policy_version": file.version, "before": last.version, "changed_by": last.changed_by},
            )
        if last is None or (last.version, last.origin) != (file.version, FILE):
            await store_policies.add_policy_change(connection, change_to(file, now_s, origin=FILE))
        return file
    try:
        policy, left_out = stored(last.body)
    except PolicyError as error:
        raise ConfigurationError(
            f"the policy {last.version}, set by {last.changed_by or 'an unknown caller'}, cannot be used any more: "
            f"{error.detail} (lines are those of the stored document); with MERIDIAN_SCHEDULER_POLICY_FROM_FILE=true the "
            f"scheduler starts with {file.version}, the policy of its file"
        ) from None
    if left_out:
        log.warning(
            "the policy in force said what its planner does not read; it goes on without, as it decided before",
            extra={"policy_version": policy.version, "before": last.version, "left_out": left_out},
        )
    if policy.version != file.version:
        log.info(
            "the policy that was set applies, not that of the scheduler's file; `meridian policy reset` gives it up",
            extra={"policy_version": policy.version, "file_version": file.version, "changed_by": last.changed_by},
        )
    if policy.version != last.version:
        # A newer release writes the same policy with more fields.
        await store_policies.add_policy_change(
            connection, replace(change_to(policy, now_s, origin=API), source=last.source)
        )
    return policy


async def in_force(connection: AsyncConnection, known: Policy, file: Policy) -> Policy:
    """The policy that was committed last. ``known``: the one in memory."""
    last = await _last(connection)
    if last is None:
        return file
    if last.version == known.version:
        return known
    return file if last.version == file.version else stored(last.body)[0]


async def put(connection: AsyncConnection, before: Policy, change: PolicyChange, condition: str | None) -> Outcome:
    """Note a change in an open transaction of the writer.

    REFUSED when ``condition`` does not hold for ``before``, unless what is asked for is so already (RFC 9110, section
    13.1.1: a request that is repeated because its answer was lost).
    """
    last = await _last(connection)
    if last is not None and (last.version, last.origin) == (change.version, change.origin):
        return Outcome.UNCHANGED
    if not matches(condition, before.version):
        return Outcome.REFUSED
    await store_policies.add_policy_change(connection, change)
    return Outcome.CHANGED


async def _last(connection: AsyncConnection) -> PolicyChange | None:
    return next(iter(await store_policies.policy_changes(connection)), None)
