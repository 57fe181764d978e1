"""One Kubernetes for the tests of a file; where its programs are absent the tests are skipped with their names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kubernetes.control_plane import ControlPlane, absent, control_plane_running, programs_dir


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[ControlPlane]:
    if missing := absent():
        pytest.skip(f"no Kubernetes in {programs_dir()} (make kubernetes): {missing}")
    with (
        tempfile.TemporaryDirectory(prefix="meridian-kubernetes-") as name,
        control_plane_running(Path(name)) as plane,
    ):
        yield plane
