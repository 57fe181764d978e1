"""SPIFFE ids by the standard."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.identity.compute_ids import LENGTH, mint_compute_id
from services.identity.spiffe import SpiffeId, compute_spiffe_id, parse_spiffe_id

segment = st.text("abcXYZ019._-", min_size=1, max_size=12).filter(lambda text: text not in {".", ".."})
trust_domain = st.text("abcxyz019._-", min_size=1, max_size=20)


@given(trust_domain, st.lists(segment, max_size=5))
def test_what_is_allowed_comes_back_as_it_was(domain: str, segments: list[str]) -> None:
    text = str(SpiffeId(domain, tuple(segments)))
    assert parse_spiffe_id(text) == SpiffeId(domain, tuple(segments))


@pytest.mark.parametrize(
    "text",
    [
        "", "spiffe:/a", "http://a/b", "SPIFFE://a/b", "spiffe://", "spiffe:///a", "spiffe://A/b", "spiffe://a/",
        "spiffe://a//b", "spiffe://a/b/", "spiffe://a/.", "spiffe://a/../b", "spiffe://a/b%20c", "spiffe://a/b?c",
        "spiffe://a/b#c", "spiffe://a:80/b", "spiffe://u@a/b", "spiffe://a/ä", "spiffe://a/b c", "spiffe://a/b\n",
        "spiffe://a/" + "b" * 2048,
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_spiffe_id(text)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(InvalidArgumentError):
        assert str(parse_spiffe_id(text)) == text


def test_compute_ids_are_long_random_and_fit_into_names() -> None:
    ids = {mint_compute_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(item) for item in ids} == {LENGTH}
    name = compute_spiffe_id("meridian.local", "beijing", "node", next(iter(ids)))
    assert name.startswith("spiffe://meridian.local/cpn/beijing/node/")
    with pytest.raises(InvalidArgumentError):
        compute_spiffe_id("meridian.local", "../other", "node", "x")
