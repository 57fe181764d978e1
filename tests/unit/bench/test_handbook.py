"""The handbook says what the cost model says now."""

import shlex
from xml.etree import ElementTree as ET

from bench.handbook import FOLDER, pages
from bench.result import read


def test_the_handbook_is_fresh_and_its_plots_are_well_formed() -> None:
    written = pages()
    stale = [name for name, text in written.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m bench.handbook"
    for name, text in written.items():
        if name.endswith(".svg"):
            assert ET.fromstring(text).tag.endswith("svg")


def test_how_far_off_the_cost_model_is_was_measured_by_a_command_of_every_machine() -> None:
    words = shlex.split(read(FOLDER / "validation.json")["command"])
    assert words[:3] == ["python", "-m", "bench.cost_model"]
    assert [word for word in words if word.startswith(("/", "~"))] == [], "set MERIDIAN_DATA when it is measured anew"
