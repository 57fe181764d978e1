"""The checks of the result form and its published schema refuse and accept the same documents."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest

from meridian.result import SCHEMA_PATH, InvalidResultError, Row, document, validate

GOOD = document("c", [], 3, "simulated", [Row("fifo", "jct_mean_h", 1.5), Row("fifo", "wan_gib", None, reason="none")])

CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("schema",), "meridian.result/2"),
    (("command",), ""),
    (("seed",), 1.5),
    (("seed",), "0"),
    (("setting",), "guessed"),
    (("data",), [{"name": "x", "sha256": "0" * 63}]),
    (("data",), [{"name": "x", "sha256": "0" * 64}]),
    (("data",), [{"name": "x"}]),
    (("rows",), []),
    (("rows", 0, "measure"), "JCT"),
    (("rows", 0, "value"), "1"),
    (("rows", 0, "value"), True),
    (("rows", 0, "value"), 1),
    (("rows", 0, "value"), None),
    (("rows", 0, "low"), None),
    (("rows", 0, "n"), -1),
    (("rows", 0, "n"), None),
    (("rows", 0, "baseline"), 1),
    (("rows", 0, "reason"), ""),
    (("rows", 1, "reason"), None),
    (("rows", 0, "extra"), 1),
    (("extra",), 1),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_checks_agree_with_the_schema(change: tuple[tuple[str | int, ...], Any]) -> None:
    path, value = change
    body = copy.deepcopy(GOOD)
    place: Any = body
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    schema = jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
    if schema.is_valid(body):
        validate(body)
        return
    with pytest.raises(InvalidResultError) as caught:
        validate(body)
    assert str(path[-1]) in str(caught.value) or path[-1] in {"reason", "value"}


def test_missing_fields_are_named() -> None:
    for name in GOOD:
        body = {key: value for key, value in GOOD.items() if key != name}
        with pytest.raises(InvalidResultError, match=name):
            validate(body)
