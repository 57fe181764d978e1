"""How large an answer to a shard may be, and what becomes of one that is larger. Pure."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.apart.messages import GrantName, Reply
from services.scheduler.shards.wire import answer_message

ANSWER_BYTES = 512 * 1024
"""Half of what a topic takes by itself: who hands an answer on adds to it."""
TOO_LARGE = "the answer would be larger than its topic takes"
_REASON_CHARACTERS = 200
# Tag and length of a field, at most.
_FRAME_BYTES = 6


def fitted(reply: Reply, most_bytes: int, at_s: float) -> tuple[Reply, list[GrantName]]:
    """The answer in at most ``most_bytes``, and the names of what it does not tell of what was placed.

    Steps: (1) one that is small enough stays as it is, (2) explanations are left out, (3) reasons are cut, (4) of what was placed there
    stands, in its order, what has room, (5) the rest is refused with the reason, and what was refused follows, as far as there is room: a
    unit that is not named is refused too.
    """
    if answer_message(reply, at_s).ByteSize() <= most_bytes:
        return reply, []
    short = replace(reply, explanations={})
    reasons = tuple((name, reason[:_REASON_CHARACTERS]) for name, reason in reply.refused)
    message = answer_message(replace(short, refused=reasons), at_s)
    if message.ByteSize() <= most_bytes:
        return replace(short, refused=reasons), []
    room = most_bytes - answer_message(replace(short, placed=(), refused=()), at_s).ByteSize()
    told, untold = [], []
    for item, placed in zip(reply.placed, message.placed, strict=True):
        size = placed.ByteSize() + _FRAME_BYTES
        if size <= room:
            room -= size
            told.append(item)
        else:
            untold.append(item[0])
    refusals = [*((name, TOO_LARGE) for name in untold), *reasons]
    sizes = answer_message(replace(short, placed=(), refused=tuple(refusals)), at_s).refused
    refused = []
    for pair, said in zip(refusals, sizes, strict=True):
        room -= said.ByteSize() + _FRAME_BYTES
        if room < 0:
            break
        refused.append(pair)
    names = {name for name, _ in told}
    wake_s = {name: wake_s for name, wake_s in reply.wake_s.items() if name in names}
    return replace(short, placed=tuple(told), refused=tuple(refused), wake_s=wake_s), untold
