"""The collector of cycles is off while anybody is inside, and afterwards as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from services.scheduler.collector import held_off


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_as_before_once_all_have_left(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    with held_off():
        assert not gc.isenabled()
        with held_off():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the outer one is still inside"
    assert gc.isenabled() == was_on


def test_an_error_leaves_too() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="wrong"), held_off():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_the_last_of_several_threads_turns_it_on() -> None:
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def another() -> None:
        with held_off():
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=another)
    with held_off():
        thread.start()
        assert inside.wait(30)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
