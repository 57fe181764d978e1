"""One Slurm for all tests here; where its programs are absent the tests are skipped with their names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import SlurmCluster, absent, slurm_running


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    if missing := absent():
        pytest.skip(f"no Slurm on this machine (apt-get install slurm-wlm munge): {missing}")
    with tempfile.TemporaryDirectory(prefix="meridian-slurm-") as name, slurm_running(Path(name)) as cluster:
        yield cluster
