"""Logs of bounded size under processes that write on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meridian.embedded.log_files import open_log, shorten, size_bytes

KIB = 1024
MEMORY = Path("/dev/shm")
WRITES = """
import os, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
number = 0
while not os.path.exists(sys.argv[2]):
    for _ in range(200):
        number += 1
        os.write(out, b"%08d\\n" % number)
print(number)
"""


def _numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_bytes().split()]


def _former(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def test_a_short_log_and_one_that_is_not_there_stay(tmp_path: Path) -> None:
    path = tmp_path / "log" / "a.log"
    assert shorten(path, 64 * KIB) == 0
    with open_log(path) as log:
        log.write(b"x" * 64 * KIB)
    assert shorten(path, 64 * KIB) == 0
    assert size_bytes(path) == 64 * KIB
    assert not _former(path).exists()


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_the_beginning_goes_and_who_writes_goes_on(where: str, tmp_path: Path) -> None:
    folder = tmp_path if where == "disk" else MEMORY / f"meridian-{os.getpid()}"
    path = folder / "a.log"
    try:
        with open_log(path) as log:
            for number in range(20_000):
                log.write(b"%08d\n" % number)
            gone_bytes = shorten(path, 64 * KIB)
            assert gone_bytes == 180_000 - size_bytes(path) > 0
            assert size_bytes(path) <= 20 * KIB
            log.write(b"%08d\n" % 20_000)
        said = _former(path).read_bytes() + path.read_bytes()
        assert [int(line) for line in said.split()] == list(range(20_001))
        assert path.stat().st_mode & 0o777 == _former(path).stat().st_mode & 0o777 == 0o600
        assert sorted(found.name for found in folder.iterdir()) == ["a.log", "a.log.1"]
    finally:
        for found in (path, _former(path)):
            found.unlink(missing_ok=True)
        if where == "memory":
            folder.rmdir()


def test_a_log_that_is_written_all_the_time_loses_no_newest_line(tmp_path: Path) -> None:
    path, end = tmp_path / "a.log", tmp_path / "end"
    open_log(path).close()
    argv = (sys.executable, "-S", "-c", WRITES, str(path), str(end))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        turns = 0
        while turns < 5:
            turns += bool(shorten(path, 64 * KIB))
        end.touch()
        said, _ = writer.communicate(timeout=60)
    last = int(said)
    numbers = [int(line) for line in (_former(path).read_bytes() + path.read_bytes()).split()]
    # The boundary lies within a line, so the first may be the rest of one.
    assert numbers[1:] == list(range(numbers[1], last + 1))


def test_one_that_cannot_be_copied_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 100 * KIB)
    (tmp_path / "a.log.1.new").mkdir()
    with pytest.raises(OSError, match=r"a\.log\.1\.new"):
        shorten(path, 64 * KIB)
    assert size_bytes(path) == 100 * KIB
