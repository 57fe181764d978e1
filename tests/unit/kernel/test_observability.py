"""Log lines are JSON objects with their trace; trace contexts follow the W3C form."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.observability import (
    JsonFormatter,
    child_traceparent,
    configure_logging,
    current_traceparent,
    logged_as,
    new_traceparent,
    trace_id,
    traced,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01")


@pytest.fixture
def written() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tests.kernel.written")
    logger.setLevel("DEBUG")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger, stream
    logger.removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_time_level_service_trace_and_extras(written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    with logged_as("graph"), traced(PARENT):
        logger.warning("node %s is late", "n-1", extra={"silence_s": 1.5})
    [line] = lines(stream)
    assert datetime.fromisoformat(str(line.pop("time"))).utcoffset() is not None
    assert line == {
        "level": "warning",
        "service": "graph",
        "logger": "tests.kernel.written",
        "message": "node n-1 is late",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "silence_s": 1.5,
    }


def test_an_exception_stays_on_one_line(written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("失败")
    [line] = lines(stream)
    assert line["message"] == "失败"
    assert "first\nsecond" in str(line["exception"])
    assert "trace_id" not in line


def test_what_json_cannot_write_is_written_as_text(written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    logger.info("x", extra={"where": {1, 2}.__class__, "when": datetime(2026, 1, 1)})  # noqa: DTZ001
    assert "2026-01-01" in str(lines(stream)[0]["when"])


def test_configured_logs_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logging("info")
        logging.getLogger("meridian.anything").info("seen")
        logging.getLogger("meridian.anything").debug("hidden")
        logging.getLogger("aiokafka").info("hidden too")
    finally:
        root.handlers[:], root.level = before, level
    captured = capsys.readouterr()
    assert captured.out == ""
    written = [json.loads(line) for line in captured.err.splitlines()]
    # Whatever earlier tests left behind may be collected now, and asyncio says so in the same log.
    ours = [line["message"] for line in written if line["logger"] in {"meridian.anything", "aiokafka"}]
    assert ours == ["seen"]


def test_a_child_keeps_the_trace_and_its_flags() -> None:
    child = child_traceparent(PARENT)
    assert FORM.fullmatch(child)
    assert child.split("-")[1] == PARENT.split("-")[1]
    assert child.split("-")[2] != PARENT.split("-")[2]
    assert child_traceparent(PARENT[:-2] + "00").endswith("-00"), "the caller's decision not to sample is kept"


@given(st.text(max_size=60))
def test_a_malformed_parent_starts_a_new_trace(text: str) -> None:
    assert FORM.fullmatch(child_traceparent(text))


@pytest.mark.parametrize(
    "parent",
    [
        "00-" + "z" * 32 + "-b7ad6b7169203331-01",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-" + "A" * 32 + "-b7ad6b7169203331-01",
        "00-" + "a" * 32 + "-" + "é" * 16 + "-01",
        "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
        "00-" + "a" * 32 + "-b7ad6b7169203331-" + "1" * 5000,
    ],
)
def test_a_parent_that_only_looks_right_starts_a_new_trace(parent: str) -> None:
    child = child_traceparent(parent)
    assert FORM.fullmatch(child)
    assert parent.split("-")[1] not in child


def test_the_trace_of_the_work_ends_with_it() -> None:
    assert (current_traceparent(), trace_id()) == ("", "")
    with traced("") as outer:
        assert current_traceparent() == outer
        with traced(PARENT):
            assert trace_id() == PARENT.split("-")[1]
        assert current_traceparent() == outer
    assert trace_id() == ""


async def test_concurrent_work_keeps_its_own_trace() -> None:
    both = asyncio.Barrier(2)

    async def work(parent: str) -> str:
        with traced(parent):
            await both.wait()
            return trace_id()

    other = new_traceparent()
    assert list(await asyncio.gather(work(PARENT), work(other))) == [PARENT.split("-")[1], other.split("-")[1]]
