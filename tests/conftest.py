"""Fixtures for all tests: the real servers of `tests.fixtures_embedded`. Tests marked ``external`` need public data."""

import pytest

from tests import public_data
from tests.fixtures_embedded import *  # noqa: F403


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs public data where there are none, with the reason."""
    if public_data.is_named():
        return
    for item in items:
        if item.get_closest_marker("external") is not None:
            item.add_marker(pytest.mark.skip(reason=public_data.ABSENT))
