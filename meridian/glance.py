"""What a record says of itself before it is decoded: enough to pass over what does not concern a subscription.

Topics carry several events, and many events concern one of several readers: a program's steps the shard that placed its run, an
answer the shard that asked. Key and type stand beside the body, so looking at them costs a small part of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from aiokafka import ConsumerRecord

from meridian.catalogue import catalogue


class Concern:
    """Which records a subscription decodes. ``events`` are the types it handles; ``keys`` says whether it wants events of a record
    key (None: of all).

    Passed over is what is known not to concern it: an event of another type of the contracts (binary mode, header ``ce_type``), or
    one of a key that is not wanted, as the contracts say what stands in the key. Whatever does not say so is decoded: a record
    without key, of no known type, in structured mode. ContractError: a type is no event.
    """

    def __init__(self, events: Collection[str], keys: Callable[[str], bool] | None = None) -> None:
        topics = {catalogue().event(name).topic.name for name in events}
        others = {event.name for topic in topics for event in catalogue().events_on(topic)} - set(events)
        self._others = frozenset(name.encode() for name in others)
        self._keys = keys

    def of(self, records: Iterable[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]:
        """Those that are to be decoded, in order."""
        return [record for record in records if self._may_concern(record)]

    def _may_concern(self, record: ConsumerRecord[Any, Any]) -> bool:
        if self._others and any(name == "ce_type" and value in self._others for name, value in record.headers):
            return False
        if self._keys is None or not record.key:
            return True
        try:
            return self._keys(record.key.decode())
        except UnicodeDecodeError:
            return True
