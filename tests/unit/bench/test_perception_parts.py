"""The benchmark of perception has what the agent's reports ask of an engine."""

from __future__ import annotations

import inspect
import re

from agent import resource_reports
from bench.perception_accuracy import QuietEngine


def test_the_quiet_engine_answers_what_reports_ask() -> None:
    asked = set(re.findall(r"self\._engine\.(\w+)\(", inspect.getsource(resource_reports)))
    assert asked
    assert {name for name in asked if not callable(getattr(QuietEngine, name, None))} == set()
    assert QuietEngine().know_parts({}) is False
