"""Why a value is not known: the kinds that are published with a reading that has no value."""

from __future__ import annotations

from enum import StrEnum


class UnknownKind(StrEnum):
    """Kinds of `meridian.resource.v1.UnknownKind`; which of them are faults of quality is telemetry's to say."""

    # Nothing is wrong: the exporter does not say it, or cannot yet.
    NOT_EXPORTED = "not_exported"
    NEEDS_SECOND_SAMPLE = "needs_second_sample"
    # A figure that the value is made of is not known: the peak of the chip, who holds the device.
    NO_REFERENCE = "no_reference"
    # The exporter.
    UNAVAILABLE = "unavailable"
    LIMIT_EXCEEDED = "limit_exceeded"
    # The sample.
    SENTINEL = "sentinel"
    NOT_A_NUMBER = "not_a_number"
    UNKNOWN_STATE = "unknown_state"
    OUT_OF_RANGE = "out_of_range"
    WRONG_UNIT = "wrong_unit"
    PLACEHOLDER = "placeholder"
    DUPLICATE = "duplicate"
    INCONSISTENT = "inconsistent"
    # Its time.
    STALE = "stale"
    FROM_FUTURE = "from_future"
    CLOCK_SKEW = "clock_skew"
    FROZEN = "frozen"
    COUNTER_RESET = "counter_reset"
    # The device.
    VANISHED = "vanished"
    PARTITIONED = "partitioned"
    UNKNOWN_DEVICE = "unknown_device"


class UnknownError(Exception):
    """The value is not known: a kind and the reason in words."""

    def __init__(self, kind: UnknownKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
