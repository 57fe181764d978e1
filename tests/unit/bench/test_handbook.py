"""The handbook says what the cost model says now."""

from xml.etree import ElementTree as ET

from bench.handbook import FOLDER, pages


def test_the_handbook_is_fresh_and_its_plots_are_well_formed() -> None:
    written = pages()
    stale = [name for name, text in written.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m bench.handbook"
    for name, text in written.items():
        if name.endswith(".svg"):
            assert ET.fromstring(text).tag.endswith("svg")
