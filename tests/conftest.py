"""Fixtures for all tests: the real servers of `tests.fixtures_embedded`. Tests marked ``external`` need public data.

What starts real processes runs one test after the other in two rows, the scheduler's and all others', which two workers
take beside each other; the rest goes to whoever is free.

`make test` runs a test that failed once more, since processes, sockets and time limits are real and a machine may stand
still for a moment: the summary names each such test with what failed (RERUN), which is to be mended; one that fails twice
has failed. A test run by itself is run once.

Properties are checked on the same examples each time, so that a commit that passed passes again; `make test-properties`
draws new ones (``MERIDIAN_NEW_EXAMPLES=1``). What it finds is mended and kept as an ``@example`` of the property.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import public_data
from tests.fixtures_embedded import *  # noqa: F403

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# How quickly examples are drawn says something of the machine of the moment, not of what is tested.
_UNTIMED = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow,)}
settings.register_profile("same", derandomize=True, **_UNTIMED)
settings.register_profile("new", print_blob=True, **_UNTIMED)
settings.load_profile("new" if os.environ.get("MERIDIAN_NEW_EXAMPLES") else "same")

_WITH_PROCESSES = ("conformance", "contract", "e2e", "faults", "integration")
# About half of the time of all tests with processes.
_ROW_OF_ITS_OWN = ("tests/integration/scheduler/", "tests/integration/slurm/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Whole files go to a worker; the files of each of the two rows of tests with real processes to the same one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByProcesses(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if file.startswith(_ROW_OF_ITS_OWN):
                return "processes of the scheduler"
            return "processes" if file.split("/")[1] in _WITH_PROCESSES else file

    return ByProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs public data where there are none, with the reason."""
    if public_data.is_named():
        return
    for item in items:
        if item.get_closest_marker("external") is not None:
            item.add_marker(pytest.mark.skip(reason=public_data.ABSENT))
