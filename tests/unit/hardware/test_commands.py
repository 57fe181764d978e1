"""`meridian chips` shows facts with their evidence; `meridian recommend` asks the network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from meridian.cli.main import main
from meridian.client import Client


def test_all_chips_are_listed() -> None:
    done = CliRunner().invoke(main, ["chips"])
    assert done.exit_code == 0
    assert "h100-sxm5-80gb" in done.output
    assert len(json.loads(CliRunner().invoke(main, ["chips", "--json"]).output)) > 130


def test_a_chip_shows_who_says_what() -> None:
    done = CliRunner().invoke(main, ["chips", "壁砺100"])
    assert done.exit_code == 0
    assert "yes: official goes before estimated" in done.output
    assert "sources disagree about peak_bf16 by a factor of 4.00" in done.output
    body = json.loads(CliRunner().invoke(main, ["--json", "chips", "BR100"]).output)
    assert [each["value"] for each in body["facts"]["peak_bf16"]["statements"]] == [1024e12, 1024e12, 256e12]


@pytest.mark.parametrize(("name", "said"), [("Mystery 9", "is not in the alias table"), ("RTX 6000", "rtx-6000-ada")])
def test_a_name_that_is_not_known_is_an_error(name: str, said: str) -> None:
    done = CliRunner().invoke(main, ["chips", name])
    assert done.exit_code == 5
    assert said in done.output


def test_a_family_says_what_it_may_be() -> None:
    done = CliRunner().invoke(main, ["chips", "A100"])
    assert "the name states no variant; it may be a100-pcie-40gb" in done.output


def test_a_recommendation_is_asked_for_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    item = {
        "domain_id": "beijing", "accelerator": "Ascend 910B3", "accelerators": 3, "fits": True, "score": 0.9,
        "price_per_hour": 4.5, "currency": "CNY", "index": 1.1, "reasons": ["125.2 GiB fit on 3"],
    }  # fmt: skip
    requirement = {"levels": {"memory": 3, "latency": None}, "reasons": ["because"]}

    def post(_self: Client, path: str, body: Any = None, **_: Any) -> Any:
        asked.append((path, body))
        return {"requirement": requirement, "items": [item]}

    monkeypatch.setattr(Client, "post", post)
    monkeypatch.setenv("MERIDIAN_URL", "http://127.0.0.1:9")
    arguments = [
        "recommend",
        "training",
        "--parameters",
        "7e9",
        "--memory-gib",
        "2",
        "--max-round-trip-ms",
        "20",
        "--from",
        "a",
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    workload = {"kind": "training", "parameters": 7e9, "memory_bytes": 2.0**31, "max_round_trip_s": 0.02}
    assert asked == [("/v1/recommendations", {"workload": workload, "from_domain": "a"})]
    assert "training: memory 3 of 5" in done.output
    assert "125.2 GiB fit on 3" in done.output
    done = CliRunner().invoke(main, ["recommend", "training", "--max-price-per-hour", "0"])
    assert done.exit_code == 0, done.output
    assert asked[1][1] == {"workload": {"kind": "training", "max_price_per_hour": 0.0}}, (
        "nothing that costs is asked for"
    )


@pytest.mark.parametrize("option", ["--parameters", "--tokens", "--deadline-s", "--memory-gib", "--max-round-trip-ms", "--max-price-per-hour"])  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "many"])
def test_an_amount_without_end_is_a_usage_error(option: str, value: str) -> None:
    done = CliRunner().invoke(main, ["recommend", "training", f"{option}={value}"])
    assert done.exit_code == 2
    assert option in done.output
    assert value in done.output


def test_more_memory_than_a_number_of_bytes_can_tell_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["recommend", "hpc", "--memory-gib", "1e300"])
    assert done.exit_code == 2
    assert "--memory-gib" in done.output


def test_a_list_has_at_least_one_entry() -> None:
    for command in (["jobs"], ["incidents"], ["policy", "list"]):
        done = CliRunner().invoke(main, [*command, "--limit", "0"])
        assert done.exit_code == 2
        assert "0 is not in the range" in done.output
