"""How large an answer to a shard may be, and what becomes of one that is larger. Pure."""

from __future__ import annotations

from meridian.contracts.scheduler.v1 import scheduler_pb2

ANSWER_BYTES = 512 * 1024
"""Half of what a topic takes by itself: who hands an answer on adds to it."""
TOO_LARGE = "the answer would be larger than its topic takes"
_REASON_CHARACTERS = 200
# Tag and length of a field, at most.
_FRAME_BYTES = 6


def fitted(
    answer: scheduler_pb2.PlacementAnswer, most_bytes: int
) -> tuple[scheduler_pb2.PlacementAnswer, list[scheduler_pb2.GrantName]]:
    """The answer in at most ``most_bytes``, and the grants that it does not tell: they are to be taken back.

    Steps: (1) one that is small enough stays as it is, (2) reasons are cut, (3) of what was placed there stands, in its order, what
    has room, (4) the rest is refused with the reason, and what was refused follows, as far as there is room: a unit that is not named
    is refused too.
    """
    if answer.ByteSize() <= most_bytes:
        return answer, []
    short = scheduler_pb2.PlacementAnswer()
    short.CopyFrom(answer)
    del short.placed[:], short.refused[:]
    room = most_bytes - short.ByteSize()
    untold: list[scheduler_pb2.GrantName] = []
    for placed in answer.placed:
        size = placed.ByteSize() + _FRAME_BYTES
        if size <= room:
            room -= size
            short.placed.append(placed)
        else:
            untold.append(placed.name)
    refusals = [scheduler_pb2.RefusedUnit(name=name, reason=TOO_LARGE) for name in untold]
    refusals += [
        scheduler_pb2.RefusedUnit(name=item.name, reason=item.reason[:_REASON_CHARACTERS]) for item in answer.refused
    ]
    for refused in refusals:
        room -= refused.ByteSize() + _FRAME_BYTES
        if room < 0:
            break
        short.refused.append(refused)
    told = {item.name.SerializeToString() for item in short.placed}
    return short, [name for name in untold if name.SerializeToString() not in told]


def begun_again(answer: scheduler_pb2.PlacementAnswer) -> scheduler_pb2.PlacementAnswer | None:
    """What is said instead of an answer that the bus does not take: the shard is to begin its session anew, which takes back what it
    was not told. None: that was what the bus did not take."""
    brief = scheduler_pb2.PlacementAnswer()
    brief.CopyFrom(answer)
    brief.begin_again = True
    del brief.placed[:], brief.refused[:]
    return None if brief == answer else brief
