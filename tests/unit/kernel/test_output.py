"""What others wrote (names, reasons, ends of logs) is shown as it is written: square brackets are no markup of ours."""

from __future__ import annotations

import pytest

from meridian.cli.output import console, plain, print_table, state

HOSTILE = ["cannot read [/data/x]", "a [red]name[/red]", "[bold", "\\[x]", "[link=http://x]y[/link]"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_is_shown_as_it_is(text: str) -> None:
    with console.capture() as captured:
        print_table(["REASON", "STATE"], [[text, state("failed")]], empty="")
        console.print(f"[bold]job[/bold]  {plain(text)}", plain(text))
    shown = captured.get()
    assert shown.count(text) == 3
    assert "job  " in shown
    assert "[bold]job" not in shown
