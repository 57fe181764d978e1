"""Fixtures for all tests: the real servers of `tests.fixtures_embedded`. Tests marked ``external`` need public data.

Of two workers one runs what starts real processes, one test after the other, and the other all the rest beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import public_data
from tests.fixtures_embedded import *  # noqa: F403

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_WITH_PROCESSES = ("conformance", "contract", "e2e", "faults", "integration")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Whole files go to a worker; all files of tests with real processes go to the same one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByProcesses(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "processes" if file.split("/")[1] in _WITH_PROCESSES else file

    return ByProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs public data where there are none, with the reason."""
    if public_data.is_named():
        return
    for item in items:
        if item.get_closest_marker("external") is not None:
            item.add_marker(pytest.mark.skip(reason=public_data.ABSENT))
