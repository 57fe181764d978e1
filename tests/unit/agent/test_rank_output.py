"""The output protocol: reports among log text, in any chunking, from programs that cannot be trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.rank_output import MAX_LINE_BYTES, PREFIX, MalformedReportError, OutputScanner, parse_report

GOOD = b'@meridian {"progress": {"step": 12, "total_steps": 200, "metrics": {"loss": 3.21}}}'


def test_a_progress_line_is_read() -> None:
    report = parse_report(GOOD)
    assert report.kind == "progress"
    assert report.body == {"step": 12, "total_steps": 200, "metrics": {"loss": 3.21}}


def test_a_checkpoint_line_is_read() -> None:
    report = parse_report(b'@meridian {"checkpoint": {"step": 100, "path": "/a/b.npz"}}')
    assert (report.kind, report.body) == ("checkpoint", {"step": 100, "path": "/a/b.npz"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"@meridian ", "not JSON"),
        (b"@meridian []", "one key"),
        (b"@meridian {}", "one key"),
        (b'@meridian {"progress": 1}', "expected an object"),
        (b'@meridian {"party": {}}', "unknown kind"),
        (b'@meridian {"progress": {"step": -1}}', "step"),
        (b'@meridian {"progress": {"step": true}}', "step"),
        (b'@meridian {"progress": {"step": 1.5}}', "step"),
        (b'@meridian {"progress": {"step": 9223372036854775808}}', "step"),
        (b'@meridian {"progress": {"step": 1, "metrics": {"loss": NaN}}}', "NaN"),
        (b'@meridian {"progress": {"step": 1, "metrics": {"loss": 1e999}}}', "not finite"),
        (b'@meridian {"progress": {"step": 1, "metrics": {"loss": "low"}}}', "expected a number"),
        (b'@meridian {"progress": {"step": 1, "metrics": {"loss": 1' + b"0" * 400 + b"}}}", "too large"),
        (b'@meridian {"progress": {"step": 1' + b"0" * 5000 + b"}}", "not JSON"),
        (b'@meridian {"checkpoint": {"step": 1, "path": "relative"}}', "path"),
        (b'@meridian {"checkpoint": {"step": 1}}', "path"),
        # What stands behind would not be written as UTF-8, and the node with all its ranks would end of it.
        (b'@meridian {"checkpoint": {"step": 1, "path": "/\\ud800"}}', "path"),
        (b'@meridian {"progress": {"step": 1, "metrics": {"\\udfff": 1}}}', "metrics"),
        (b'@meridian {"a":' + b"[" * 30000, "not JSON"),
        (b'@meridian "\xff"', "not JSON"),
        (b"@meridian " + b" " * MAX_LINE_BYTES, "too long"),
    ],
)
def test_a_line_that_breaks_the_protocol_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(MalformedReportError, match=words):
        parse_report(line)


def test_text_without_newline_is_passed_on_at_once() -> None:
    scanner = OutputScanner()
    assert scanner.feed(b"epoch 1: 50%") == (b"epoch 1: 50%", [])
    assert scanner.feed(b" @meridian {}\n") == (b" @meridian {}\n", [])
    assert scanner.malformed_count == 0


def test_an_unfinished_report_is_kept_back_until_its_newline() -> None:
    scanner = OutputScanner()
    assert scanner.feed(b"log\n" + GOOD[:30]) == (b"log\n", [])
    text, reports = scanner.feed(GOOD[30:] + b"\nmore\n")
    assert text == b"more\n"
    assert [report.kind for report in reports] == ["progress"]


def test_an_over_long_line_becomes_text_and_is_counted_once() -> None:
    scanner = OutputScanner()
    seen = b""
    for _ in range(40):
        text, reports = scanner.feed(PREFIX + b"x" * 10_000)
        seen += text
        assert reports == []
    text, _ = scanner.feed(b"\n" + GOOD + b"\n")
    assert len(seen + text) == 40 * 10_010 + 1
    assert scanner.malformed_count == 1


def test_a_report_without_newline_at_the_end_is_text() -> None:
    scanner = OutputScanner()
    assert scanner.feed(GOOD) == (b"", [])
    assert scanner.finish() == GOOD
    assert scanner.malformed_count == 1


LINES = st.lists(
    st.sampled_from([GOOD, b"plain text", b"", b"@meridian broken", b"@merid", b"@", b" " + GOOD, b"\xff\x00"]),
    max_size=12,
)


@given(LINES, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_chunks_do_not_matter(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines) + b"\n"
    whole = OutputScanner()
    expected_text, expected_reports = whole.feed(data)
    scanner = OutputScanner()
    text, count, position, turn = b"", 0, 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        part, reports = scanner.feed(data[position : position + size])
        text, count, position, turn = text + part, count + len(reports), position + size, turn + 1
    assert text + scanner.finish() == expected_text
    assert count == len(expected_reports) == lines.count(GOOD)
    assert scanner.malformed_count == whole.malformed_count == lines.count(b"@meridian broken")
