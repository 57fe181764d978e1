"""One network for all end-to-end tests; it is stopped before others begin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import Network, network


@pytest.fixture(scope="package")
def running() -> Iterator[Network]:
    """Five emulated domains, every service a process of its own."""
    with network() as found:
        yield found
