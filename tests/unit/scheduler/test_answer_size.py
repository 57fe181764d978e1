"""A decider's answer that is larger than its topic takes: what it has no room for is not granted, and nobody waits behind it."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.apart.messages import GrantName, Reply, Request, Session, Wanted
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.domains.answer_size import TOO_LARGE
from services.scheduler.domains.deciding import Deciding
from services.scheduler.shards.wire import answer_message
from tests.unit.scheduler.recorded_messages import envelope, graph

MOST_BYTES = 1500
SESSION = Session(1, 1)


def wanted(number: int, ranks: int = 1) -> Wanted:
    return Wanted(GrantName(UnitKey(f"job-{number:02}", 0), 1), "lab", 0, Demand(ranks, cpus=1.0))


def a_decider(most_bytes: int = MOST_BYTES) -> Deciding:
    deciding = Deciding(Fleet(), Policy(), 3, most_bytes=most_bytes)
    deciding.learned([envelope(graph(4))], 1.0)
    begins = Request("north", "a", SESSION, 1, begins=True, holdings=(), waiting=True)
    deciding.asked([begins], 2.0)
    return deciding


def ask(deciding: Deciding, number: int, *asked: Wanted) -> list[Reply]:
    replies, _ = deciding.asked([Request("north", "a", SESSION, number, wanted=asked, waiting=True)], 2.0 + number)
    return replies


def size(reply: Reply) -> int:
    return answer_message(reply, 1.0).ByteSize()


def test_what_an_answer_has_no_room_for_is_taken_back_and_asked_for_again() -> None:
    deciding = a_decider()
    asked = [wanted(number) for number in range(30)]
    placed: list[GrantName] = []
    for number in range(2, 40):
        answer, *news = ask(deciding, number, *[item for item in asked if item.name not in placed])
        assert size(answer) <= MOST_BYTES
        assert answer.placed
        placed += [name for name, _ in answer.placed]
        held = deciding.domain("north").grants
        assert {grant.name for grant in held.values()} == set(placed), "no grant is held untold"
        assert answer.summary.running == len(placed)
        if len(placed) == len(asked):
            break
        assert (answer.refused[0][0], answer.refused[0][1]) == (asked[len(placed)].name, TOO_LARGE)
        assert [item.round for item in news] == [0], "there is room for the others"
    assert placed == [item.name for item in asked]


def test_a_unit_that_no_answer_can_tell_is_refused_and_not_offered_at_once() -> None:
    deciding = a_decider(900)
    answer, *news = ask(deciding, 2, wanted(1, ranks=60))
    assert (answer.placed, answer.refused, news) == ((), ((wanted(1).name, TOO_LARGE),), [])
    assert not deciding.domain("north").grants
    assert answer.summary.running == 0


def test_explanations_go_first_and_then_the_ends_of_reasons() -> None:
    whole = a_decider(1 << 20)
    asked = [wanted(number) for number in range(8)]
    (explained,) = ask(whole, 2, *asked)
    assert len(explained.explanations) == 8
    bare = size(replace(explained, explanations={}))
    deciding = a_decider(bare)
    assert ask(deciding, 2, *asked) == [replace(explained, explanations={})]
    assert len(deciding.domain("north").grants) == 8


def test_what_a_session_that_is_not_known_asked_for_is_cut_too() -> None:
    deciding = a_decider()
    request = Request("north", "b", SESSION, 5, wanted=tuple(wanted(number) for number in range(200)))
    (answer,), _ = deciding.asked([request], 9.0)
    assert answer.begin_again
    assert size(answer) <= MOST_BYTES
    assert answer.refused
