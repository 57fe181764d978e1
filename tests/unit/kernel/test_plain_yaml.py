"""YAML that people write is read as they mean it, wherever they write it: or it is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.collectors.table_file import load_table
from agent.settings import read_settings
from meridian.cli.job_files import read_job_file
from meridian.cli.yaml_files import read_yaml
from meridian.embedded.domains import read_domains
from meridian.errors import MeridianError
from meridian.plain_yaml import load
from services.scheduler.policy.file import parse
from simulation.domains import read_network

DOMAINS = "domains:\n- domain_id: a\n  nodes:\n  - {node_id: n, cpus: CPUS}\n"
AGENT = "domain:\n  domain_id: a\n  nodes:\n  - {node_id: n, cpus: CPUS}\ngateway: http://127.0.0.1:1\n"
NETWORK = "domains:\n- id: a\n  nodes:\n  - {count: 1, cpus: CPUS}\n"
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "job": (read_job_file, "name: x\nkind: task\n\nresources: {cpus: CPUS}\n"),
    "plan": (read_yaml, "planned:\n- job: a.yaml\n\n  after_s: CPUS\n"),
    "agent": (read_settings, AGENT),
    "table": (lambda path: load_table(str(path)), "exporter: x\n\n\nfactor: CPUS\n"),
    "demo": (read_domains, DOMAINS),
    "network": (read_network, NETWORK),
    "policy": (lambda path: parse(path.read_text()), "name: x\n\nrestarts:\n  backoff_s: CPUS\n"),
}


@pytest.mark.parametrize("number", ["010", "-0_17", "1:30", "12:30:45", "1:30.5"])
@pytest.mark.parametrize("reader", READERS)
def test_numbers_to_other_bases_are_refused_with_their_line(tmp_path: Path, reader: str, number: str) -> None:
    read, text = READERS[reader]
    file = tmp_path / f"{reader}.yaml"
    file.write_text(text.replace("CPUS", number))
    with pytest.raises(MeridianError) as caught:
        read(file)
    said = str(caught.value.detail)
    assert f"{number!r} would be read as {yaml.safe_load(number)!r} (YAML 1.1); write a decimal number" in said
    assert "line 4" in said or getattr(caught.value, "line", 0) == 4


@pytest.mark.parametrize("reader", READERS)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, reader: str) -> None:
    read, text = READERS[reader]
    file = tmp_path / f"{reader}.yaml"
    file.write_text(text.replace("CPUS", "1") + text.partition("\n")[0] + "\n")
    with pytest.raises(MeridianError, match="twice"):
        read(file)


def test_what_looks_like_what_it_is_is_read() -> None:
    text = "{a: 10, b: 1.5, c: 0, d: 0x10, e: '010', f: '1:30', g: yes, h: 08, i: 10:70, j: 127.0.0.1:80, k: 0.5, l: -3, m: 1e3}"
    assert load(text) == {
        "a": 10,
        "b": 1.5,
        "c": 0,
        "d": 16,
        "e": "010",
        "f": "1:30",
        "g": True,
        "h": "08",
        "i": "10:70",
        "j": "127.0.0.1:80",
        "k": 0.5,
        "l": -3,
        "m": "1e3",
    }
    assert load("base: &b {x: 1, y: 2}\nother: {<<: *b, x: 3}") == {"base": {"x": 1, "y": 2}, "other": {"x": 3, "y": 2}}
    assert load("") is None


@pytest.mark.parametrize("word", ["yes", "no", "on", "Off"])
def test_words_of_truth_are_no_names(tmp_path: Path, word: str) -> None:
    """Where a text is wanted the reader says which field it is in."""
    file = tmp_path / "file.yaml"
    for read, text, field in (
        (read_settings, AGENT.replace("CPUS", "1").replace("domain_id: a", f"domain_id: {word}"), "domain_id"),
        (read_domains, DOMAINS.replace("CPUS", "1").replace("domain_id: a", f"domain_id: {word}"), "domain_id"),
        (lambda path: parse(path.read_text()), f"name: {word}\n", "name"),
    ):
        file.write_text(text)
        with pytest.raises(MeridianError) as caught:
            read(file)
        assert field in str(caught.value.detail)
