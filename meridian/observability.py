"""Structured logs, W3C trace context and the metrics every service has.

Logs are one JSON object a line on standard error, with the service and the trace they belong to. Trace context
(https://www.w3.org/TR/trace-context/) enters by HTTP or Kafka header, stays in a context variable and leaves with
every event the handler publishes, so one trace id follows a job through all services.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
_service: ContextVar[str] = ContextVar("service", default="")

# Section 3.2 of the recommendation; ids of zeros only are invalid.
_TRACEPARENT = re.compile(r"00-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def new_traceparent() -> str:
    """A fresh sampled trace context."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def child_traceparent(parent: str) -> str:
    """The same trace with a new span id; a fresh trace when ``parent`` is malformed or empty."""
    form = _TRACEPARENT.fullmatch(parent)
    if form is None:
        return new_traceparent()
    return f"00-{form['trace']}-{secrets.token_hex(8)}-{form['flags']}"


def current_traceparent() -> str:
    """The trace context of the work in progress; empty outside of any."""
    return _traceparent.get()


def trace_id() -> str:
    """The 32 hexadecimal digits of the present trace; empty outside of any."""
    parts = _traceparent.get().split("-")
    return parts[1] if len(parts) == 4 else ""


@contextmanager
def traced(parent: str) -> Iterator[str]:
    """Work inside belongs to the trace of ``parent`` (a fresh one when empty)."""
    value = child_traceparent(parent)
    token = _traceparent.set(value)
    try:
        yield value
    finally:
        _traceparent.reset(token)


@contextmanager
def logged_as(service: str) -> Iterator[None]:
    """Log lines written inside carry this service's name (several services may share a process)."""
    token = _service.set(service)
    try:
        yield
    finally:
        _service.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, service, logger, message, trace and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": _service.get(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = trace_id()
        if trace:
            line["trace_id"] = trace
        line.update(
            {name: value for name, value in record.__dict__.items() if name not in _STANDARD and name[0] != "_"}
        )
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Send all logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in (
        "aiokafka",
        "faststream",
        "uvicorn",
        "uvicorn.error",
        "uvicorn.access",
        "httpx",
        "httpcore",
        "alembic",
    ):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel("WARNING")


class BusMetrics:
    """What the bus measures; one set per service, on that service's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("consumer",)
        self.consumed = Counter(
            "meridian_bus_consumed_total",
            "Events taken from the bus by outcome (handled, duplicate, dead_letter, ignored)",
            ("consumer", "outcome"),
            registry=registry,
        )
        self.retries = Counter(
            "meridian_bus_retries_total", "Batches tried again after a passing error", labels, registry=registry
        )
        self.handling = Histogram(
            "meridian_bus_handling_seconds",
            "Time to handle one batch, with its transaction",
            labels,
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )
        self.age = Histogram(
            "meridian_bus_event_age_seconds",
            "Time from the event to the end of its handling",
            labels,
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
        )
        self.lag = Gauge("meridian_bus_lag_records", "Records not yet handled", labels, registry=registry)
        self.published = Counter(
            "meridian_outbox_published_total", "Events sent to the bus from the outbox", registry=registry
        )
        self.outbox_age = Gauge("meridian_outbox_oldest_seconds", "Age of the oldest unsent event", registry=registry)
