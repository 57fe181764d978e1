"""One network for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import Network, network


@pytest.fixture(scope="session")
def running() -> Iterator[Network]:
    """Five emulated domains, every service a process of its own."""
    with network() as found:
        yield found
