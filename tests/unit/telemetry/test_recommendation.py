"""From a workload to a graded requirement to offers in their order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
from pydantic import ValidationError

from meridian.hardware import standard
from services.telemetry.index.served import ServedIndex, catalogue_measurements
from services.telemetry.recommendation.offers import Offer, Ranked, ranked
from services.telemetry.recommendation.profiles import PROFILES, Kind, Requirement, Workload, graded

GIBI = 2.0**30


@cache
def served() -> ServedIndex:
    return ServedIndex(catalogue_measurements(standard()), standard(), datetime(2026, 1, 1, tzinfo=UTC))


def asked(**fields: object) -> Requirement:
    return graded(Workload.model_validate(fields))


def offer(
    requirement: Requirement,
    domain: str,
    name: str,
    *,
    free: int = 8,
    total: int = 8,
    price: float | None = 1.0,
    rtt: float | None = 0.001,
    reachable: bool = True,
) -> Offer:
    found = standard().resolve(name)
    chip = standard().chip(found.chip_id) if found.chip_id else None
    entry = served().entry(chip.id, requirement.task, requirement.precision) if chip else None
    return Offer(domain, name, chip, entry, free, total, price, "CNY", rtt, reachable)


def test_training_needs_sixteen_bytes_a_parameter() -> None:
    found = asked(kind="training", parameters=7e9)
    assert found.memory_bytes == pytest.approx(7e9 * 16 * 1.2)
    assert found.levels["memory"] == 3  # 125 GiB
    assert found.precision == "bf16"


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({"kind": "fine_tuning"}, 16),
        ({"kind": "fine_tuning", "low_rank": True}, 2),
        ({"kind": "batch_inference"}, 2),
        ({"kind": "batch_inference", "precision": "int8"}, 1),
        ({"kind": "batch_inference", "precision": "fp64"}, 8),
        ({"kind": "realtime_inference", "precision": "fp32"}, 4),
    ],
)
def test_bytes_a_parameter_by_kind(fields: dict[str, object], each: float) -> None:
    assert asked(parameters=1e9, **fields).memory_bytes == pytest.approx(1e9 * each * 1.2)


def test_only_training_needs_a_rate_of_its_own_at_eight_bits() -> None:
    for kind, fits in {"training": False, "fine_tuning": False, "batch_inference": True}.items():
        requirement = asked(kind=kind, parameters=1e9, precision="fp8")
        found = order(requirement, offer(requirement, "a", "A100-SXM4-80GB"), offer(requirement, "b", "H100 SXM"))
        assert {item.offer.domain_id: item.fits for item in found} == {"a": fits, "b": True}


def test_what_is_told_but_not_used_is_said_or_refused() -> None:
    with pytest.raises(ValidationError, match="low_rank is of fine_tuning only"):
        asked(kind="training", parameters=7e10, low_rank=True)
    for fields in ({"deadline_s": 100.0}, {"tokens": 1e9}):
        found = asked(kind="training", parameters=7e9, **fields)
        assert found.flops is None
        assert "no rate is asked for: that takes parameters, tokens and a deadline together" in found.reasons


def test_the_rate_follows_from_tokens_and_deadline() -> None:
    # 6 x 7e9 x 1e9 / 86400 s
    found = asked(kind="training", parameters=7e9, tokens=1e9, deadline_s=86_400)
    assert found.flops == pytest.approx(4.861e14, rel=1e-3)
    assert found.levels["compute"] == 3
    assert asked(kind="batch_inference", parameters=7e9, tokens=1e9, deadline_s=86_400).flops == pytest.approx(
        1.620e14, rel=1e-3
    )


@pytest.mark.parametrize(("round_trip_s", "level"), [(0.005, 5), (0.01, 5), (0.02, 4), (0.05, 3), (0.3, 2), (2.0, 1)])
def test_latency_is_graded(round_trip_s: float, level: int) -> None:
    assert asked(kind="video", max_round_trip_s=round_trip_s).levels["latency"] == level


def test_every_kind_has_a_profile_whose_weights_add_up() -> None:
    assert set(PROFILES) == set(Kind)
    for profile in PROFILES.values():
        assert sum(profile.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "fields",
    [{"kind": "training"}, {"kind": "knitting"}, {"kind": "hpc", "parameters": -1}, {"kind": "hpc", "deadline_s": "inf"},
     {"kind": "hpc", "surprise": 1}, {"kind": "hpc", "precision": "fp12"}],
)  # fmt: skip
def test_a_workload_that_says_nothing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Workload.model_validate(fields)


def order(requirement: Requirement, *offers: Offer) -> list[Ranked]:
    return ranked(requirement, offers)


def test_the_faster_of_two_otherwise_equal_offers_is_first() -> None:
    asks = asked(kind="training", parameters=1e9)
    found = order(asks, offer(asks, "a", "A100-SXM4-80GB"), offer(asks, "b", "H100-SXM5-80GB"))
    assert [each.offer.domain_id for each in found] == ["b", "a"]
    assert found[0].score is not None
    assert "score" in found[0].reasons[-1]


def test_the_cheaper_of_two_otherwise_equal_offers_is_first() -> None:
    asks = asked(kind="batch_inference", parameters=1e9)
    found = order(asks, offer(asks, "a", "L40S", price=3.0), offer(asks, "b", "L40S", price=2.0))
    assert [each.offer.domain_id for each in found] == ["b", "a"]


def test_near_counts_for_what_answers_people() -> None:
    asks = asked(kind="realtime_inference", parameters=1e9)
    far = offer(asks, "far", "A100-SXM4-80GB", rtt=0.045, price=0.7)
    near = offer(asks, "near", "A100-SXM4-80GB", rtt=0.001)
    assert [each.offer.domain_id for each in order(asks, far, near)] == ["near", "far"]
    patient = asked(kind="batch_inference", parameters=1e9)
    assert [each.offer.domain_id for each in order(patient, far, near)] == ["far", "near"]


def test_the_score_is_the_sum_that_its_reason_says() -> None:
    asks = asked(kind="training", parameters=1e9)
    best, other = order(asks, offer(asks, "a", "H100-SXM5-80GB"), offer(asks, "b", "A100-SXM4-80GB", free=4, rtt=0.003))
    weights = PROFILES[Kind.TRAINING].weights
    assert best.score == pytest.approx(
        weights["speed"] + weights["price"] + weights["distance"] * 0.5 + weights["availability"]
    )
    assert other.offer.entry is not None
    assert best.offer.entry is not None
    slower = other.offer.entry.index / best.offer.entry.index
    expected = (
        (weights["speed"] + weights["price"]) * slower + weights["distance"] * 0.25 + weights["availability"] * 0.5
    )
    assert other.score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "fields", "obstacle"),
    [
        ({"name": "Mystery"}, {}, "'Mystery' is not in the catalogue"),
        ({"reachable": False}, {}, "the domain is not reachable"),
        ({"name": "T4", "free": 2, "total": 2}, {}, "2 accelerators are needed"),
        ({"free": 1}, {"accelerators": 4}, "4 accelerators are needed, 1 of 8 are free now"),
        ({"free": 8}, {"accelerators": 9}, "9 accelerators are needed, the domain has 8"),
        ({"rtt": 0.2}, {"max_round_trip_s": 0.1}, "its round trip of 200.0 ms is above 100 ms"),
        ({"price": 5.0}, {"max_price_per_hour": 4.0}, "5 an hour is above 4"),
        ({"name": "TPU v4"}, {"precision": "fp64"}, "no rate at fp64 is known of TPU v4"),
        ({"name": "A100-SXM4-80GB"}, {"precision": "fp8"}, "no rate at fp8 is known of A100"),
    ],
)
def test_what_does_not_fit_is_last_and_says_why(
    changes: dict[str, object], fields: dict[str, object], obstacle: str
) -> None:
    asks = asked(kind="training", **{"memory_bytes": 20 * GIBI, **fields})
    given = {"name": "A100-SXM4-80GB", **changes}
    bad = offer(asks, "bad", str(given.pop("name")), **given)  # type: ignore[arg-type]
    good = offer(asks, "good", "MI300X", free=64, total=64, price=None)
    found = order(asks, bad, good)
    assert found[-1].offer.domain_id == "bad"
    if obstacle == "2 accelerators are needed":
        # 20 GiB on T4s of 16 GiB take two, and there are two.
        assert found[-1].accelerators == 2
        assert found[-1].fits
        return
    assert not found[-1].fits
    assert found[-1].score is None
    assert obstacle in found[-1].reasons[0]


def test_what_is_not_known_counts_half_and_says_so() -> None:
    asks = asked(kind="hpc")
    (found,) = order(asks, offer(asks, "a", "MI300X", price=None, rtt=None))
    assert "its price is not known, which counts half" in found.reasons
    weights = PROFILES[Kind.HPC].weights
    assert found.score == pytest.approx(
        weights["speed"] + 0.5 * weights["price"] + 0.5 * weights["distance"] + weights["availability"]
    )


@pytest.mark.parametrize("fields", [{"tokens": 1e300}, {"deadline_s": 1e-300, "tokens": 1e12}, {"memory_bytes": 1e300}])
def test_amounts_without_end_are_refused_by_their_field(fields: dict[str, object]) -> None:
    """They came to infinitely many FLOP/s, of which no number of accelerators can be told."""
    body = {"kind": "training", "parameters": 1e15, "tokens": 1e12, "deadline_s": 1e6, **fields}
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate(body)
    assert {error["loc"] for error in caught.value.errors()} <= {("tokens",), ("deadline_s",), ("memory_bytes",)}
    most = asked(kind="training", parameters=1e15, tokens=1e24, deadline_s=1e-3)
    assert not ranked(most, [offer(most, "a", "H100-SXM5-80GB")])[0].fits


def test_prices_in_several_currencies_are_not_compared() -> None:
    found = asked(kind="batch_inference", parameters=7e9)
    dear, cheap = (
        replace(offer(found, "east", "H100-SXM5-80GB", price=price), currency="CNY") for price in (20.0, 10.0)
    )
    far = replace(offer(found, "west", "H100-SXM5-80GB", price=3.0), currency="EUR")
    placed = {each.offer.domain_id + each.offer.currency: each for each in ranked(found, [dear, cheap, far])}
    first, *rest = ranked(found, [dear, cheap, far])
    assert first.offer is cheap
    assert "price 1.00" in first.reasons[-1]
    # 10 of 20 are half, and half is what counts for what cannot be told.
    assert [each.score for each in rest] == [pytest.approx(rest[0].score)] * 2
    assert "its price in EUR cannot be compared, which counts half" in placed["westEUR"].reasons


def test_a_price_in_another_currency_is_not_held_against_the_limit() -> None:
    found = asked(kind="batch_inference", parameters=7e9, max_price_per_hour=10.0)
    prices = {"CNY": 8.0, "JPY": 500.0}
    offers = [
        replace(offer(found, name, "H100-SXM5-80GB", price=price), currency=name) for name, price in prices.items()
    ]
    above = replace(offer(found, "dear", "H100-SXM5-80GB", price=12.0), currency="CNY")
    placed = {each.offer.domain_id: each for each in ranked(found, [*offers, above])}
    assert {name: each.fits for name, each in placed.items()} == {"CNY": True, "JPY": True, "dear": False}
    assert "12 an hour is above 10" in placed["dear"].reasons
    assert "500 JPY an hour cannot be compared with the limit, which is in CNY" in placed["JPY"].reasons


@pytest.mark.parametrize(("name", "needed"), [("A100", 5), ("A100-SXM4-80GB", 3), ("A100 40GB", 5), ("昇腾910B", 6)])
def test_memory_fits_on_whichever_chip_a_name_without_variant_means(name: str, needed: int) -> None:
    requirement = asked(kind="hpc", memory_bytes=150 * GIBI)
    placed = ranked(requirement, [offer(requirement, "north", name)])[0]
    assert placed.accelerators == needed


def test_the_memory_that_the_domain_states_counts() -> None:
    """An A100 has 40 or 80 GB: 7e9 x 16 bytes x 1.2 are 134.4e9 bytes, of which 0.9 x 40 GiB hold 38.7e9, 0.9 x 80 GiB 77.3e9."""
    requirement = asked(kind="training", parameters=7e9)
    plain = offer(requirement, "north", "A100")
    [least] = ranked(requirement, [plain])
    assert least.accelerators == 4
    assert any("variant not stated, which may have 40 GiB only" in reason for reason in least.reasons)
    [stated] = ranked(requirement, [replace(plain, memory_bytes=80 * GIBI)])
    assert stated.accelerators == 2
    assert any("fit on 2 x A100, variant not stated of 80 GiB" in reason for reason in stated.reasons)
    # Of a chip with a name of its own nothing has to be added.
    [named] = ranked(requirement, [replace(offer(requirement, "north", "Ascend 910B3"), memory_bytes=64 * GIBI)])
    assert any(reason.endswith("fit on 3 x Ascend 910B3") for reason in named.reasons)


@pytest.mark.parametrize("count", [21, 37, 42, 47])
def test_what_fills_a_number_of_accelerators_exactly_needs_no_more(count: int) -> None:
    # 21 x 0.9 x 16 GiB over 0.9 x 16 GiB is 21.000000000000004.
    requirement = asked(kind="hpc", precision="fp32", memory_bytes=count * 0.9 * 16 * GIBI)
    [found] = ranked(requirement, [offer(requirement, "north", "V100-SXM2-16GB", free=64, total=64)])
    assert found.accelerators == count
