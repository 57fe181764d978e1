"""What the scheduler refuses, and why."""

from __future__ import annotations

from meridian.errors import InvalidArgumentError


class MalformedJobError(InvalidArgumentError):
    """The specification contradicts itself (a cycle, zero ranks): no network could ever run it."""

    code = "MALFORMED_JOB"
    title = "Malformed job"


class PolicyError(InvalidArgumentError):
    """A policy names a plugin that does not exist or gives a value out of range."""

    code = "INVALID_POLICY"
    title = "Invalid policy"


class GivenUpError(Exception):
    """Who asked had a bound on the work, and it is reached: nothing was decided."""
