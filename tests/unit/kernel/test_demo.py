"""The demo's verdict stands on the whole of what the network says of its job."""

from __future__ import annotations

from typing import Any

from meridian.cli.demo import _with_last_step


def view(step: int, state: str = "succeeded") -> dict[str, Any]:
    return {"job_id": "job-1", "state": state, "units": [{"step": step, "total_steps": 300}]}


class _Gateway:
    """Answers with one view after the other."""

    def __init__(self, *views: dict[str, Any]) -> None:
        self.left = list(views)

    def job(self, job_id: str) -> dict[str, Any]:
        assert job_id == "job-1"
        return self.left.pop(0)


def test_the_report_of_the_last_step_may_come_after_the_end_of_the_job() -> None:
    gateway = _Gateway(view(299), view(300))
    assert _with_last_step(gateway, view(280)) == view(300)  # type: ignore[arg-type]
    assert gateway.left == []


def test_a_job_that_failed_has_no_last_step_to_wait_for() -> None:
    assert _with_last_step(_Gateway(), view(120, "failed")) == view(120, "failed")  # type: ignore[arg-type]
