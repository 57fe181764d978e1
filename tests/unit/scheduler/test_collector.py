"""The collector of cycles is off while anybody is inside, and afterwards as it was; what it left it leaves alone for long."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from services.scheduler import collector
from services.scheduler.collector import held_off, leave_survivors


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_on, threshold = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    (gc.enable if was_on else gc.disable)()
    if collector._survivors in gc.callbacks:
        gc.callbacks.remove(collector._survivors)
        gc.unfreeze()


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


class Round:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_collection_left_is_looked_through_again_by_a_thorough_one() -> None:
    leave_survivors()
    leave_survivors()
    assert gc.callbacks.count(collector._survivors) == 1
    kept = Round()
    gc.collect()
    assert gc.get_freeze_count() > 0
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is not None, "it was left alone"
    for _ in range(collector._THOROUGH):
        gc.collect()
    assert gone() is None
    other = Round()
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None, "what came since is looked through"
