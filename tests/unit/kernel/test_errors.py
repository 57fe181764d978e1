"""Every expected error is a complete RFC 9457 problem with a code of its own."""

from __future__ import annotations

import inspect

import pytest

from meridian import errors
from meridian.errors import FieldError, InvalidArgumentError, MeridianError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MeridianError)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_says_what_a_problem_must_say(kind: type[MeridianError]) -> None:
    problem = kind("what went wrong").problem("/v1/jobs", "abc")
    assert problem == {
        "type": f"urn:meridian:error:{kind.code.lower().replace('_', '-')}",
        "title": kind.title,
        "status": kind.status,
        "detail": "what went wrong",
        "code": kind.code,
        "instance": "/v1/jobs",
        "correlationId": "abc",
    }
    assert 400 <= kind.status < 600
    assert kind.__doc__


def test_codes_and_titles_differ() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert len({kind.title for kind in KINDS}) == len(KINDS)


def test_what_is_not_known_is_left_out() -> None:
    assert set(MeridianError("x").problem()) == {"type", "title", "status", "detail", "code"}


def test_wrong_fields_are_listed_with_their_pointers() -> None:
    error = InvalidArgumentError("two", errors=(FieldError("/ranks", "is 0"), FieldError("/env/A~1B", "is empty")))
    assert error.problem()["errors"] == [
        {"pointer": "/ranks", "detail": "is 0"},
        {"pointer": "/env/A~1B", "detail": "is empty"},
    ]
    assert str(error) == "two"
