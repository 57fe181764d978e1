"""Fixtures for all tests: the real servers of `tests.fixtures_embedded`."""

from tests.fixtures_embedded import *  # noqa: F403
