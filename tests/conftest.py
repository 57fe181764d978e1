"""Fixtures for all tests: the real servers of `tests.fixtures_embedded`. Tests marked ``external`` need public data.

Of two workers one runs what starts real processes, one test after the other, and the other all the rest beside it.
"""

from pathlib import Path

import pytest

from tests import public_data
from tests.fixtures_embedded import *  # noqa: F403

_HERE = Path(__file__).parent
_WITH_PROCESSES = {"conformance", "contract", "e2e", "faults", "integration"}


# First: where tests are shared out, groups are read from their marks next.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with real processes on one worker; skip what needs public data where there are none, with the reason."""
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in _WITH_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("processes"))
        if item.get_closest_marker("external") is not None and not public_data.is_named():
            item.add_marker(pytest.mark.skip(reason=public_data.ABSENT))
