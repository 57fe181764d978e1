"""The accelerators of one pool of ResourceSlices: which is a part of which, their numbers, and what share of each is free. Pure.

Parts name their parent (``parentUUID``), or take less than another device of the same shared counters (KEP-4815), or all of them as
another does that has more memory (modes of one device, as AMD's driver lists them), or stand at the PCI address of another (one
for passthrough beside the same for computing), or of nothing that is whole (an AMD card that was divided beforehand: all that is
listed of it are partitions, without counters). A number is the attribute ``index`` or ``minor``, else that in the name
(``gpu-3``, ``gpu-0-mig-1g10gb-19-0``), if each accelerator of the pool has one of its own; else it is the place in the
natural order of names. Names of several numbers in a row have none: they are addresses, or a card and its render node
(``gpu-8-136`` of AMD is the second of its node). The order in which a driver lists its devices says nothing: it
changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.collectors.quantities import quantity

MAX_NUMBER = 1023
# A difference of quantities may miss by its rounding.
ROUNDING = 1e-9
_NUMBERED = re.compile(r"[a-z]+(?:-[a-z]+)*-?([0-9]{1,4})(?!-?[0-9]|[a-z])", re.IGNORECASE)
_PARTITION = re.compile(r"(?:^|[^a-z])partition(?:$|[^a-z])", re.IGNORECASE)
Needs = dict[tuple[str, str], float | None]
"""Amounts by counter set and counter; None: it is no quantity."""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """A device of a pool; ``whole``: what names its accelerator, ``is_part``: it is a part of that."""

    name: str
    content: Mapping[str, Any]
    whole: str
    is_part: bool


def devices_of(
    listed: Sequence[tuple[str, Mapping[str, Any]]], counters: Iterable[Mapping[str, Any]] = ()
) -> list[PoolDevice]:
    """The devices of a pool, by name and content, with what they are parts of; ``counters``: see `free_shares`."""
    by_counters = _largest(listed, _totals(counters))
    by_address = _at_address(listed)
    found = []
    for name, content in listed:
        parent = text_of(content, "parentUUID") or by_counters.get(name, "") or by_address.get(name, "")
        found.append(PoolDevice(name, content, parent or _id(name, content), bool(parent)))
    return found


def numbers_of(devices: Sequence[PoolDevice], taken: Iterable[int] = ()) -> dict[str, int]:
    """Numbers by accelerator; those that another pool of the node has taken are passed over."""
    wholes: dict[str, PoolDevice] = {}
    for device in sorted(devices, key=lambda device: (not device.is_part, _natural(device.name)), reverse=True):
        # In the end the whole device, or the first of its parts by name.
        if device.whole not in wholes or wholes[device.whole].is_part:
            wholes[device.whole] = device
    ordered = sorted(wholes, key=lambda whole: (_natural(wholes[whole].name), whole))
    stated = {whole: _stated(wholes[whole]) for whole in ordered}
    used = set(taken)
    own = {number for number in stated.values() if number is not None}
    if None not in stated.values() and len(own) == len(stated) and not own & used:
        return {whole: number for whole, number in stated.items() if number is not None}
    numbers = {}
    number = 0
    for whole in ordered:
        while number in used:
            number += 1
        numbers[whole] = number
        used.add(number)
    return numbers


def free_shares(
    devices: Sequence[PoolDevice],
    held: Mapping[str, Sequence[Mapping[str, Any]]],
    counters: Iterable[Mapping[str, Any]],
) -> dict[str, float | None]:
    """Share of each device, by name, that no claim has; None: it is not told.

    :param held: results of allocations by device.
    :param counters: ``sharedCounters`` of the pool's slices.
    """
    left = _totals(counters)
    for device in devices:
        if held.get(device.name):
            for key, amount in _needs(device.content).items():
                before = left.get(key)
                left[key] = None if before is None or amount is None else before - amount
    taken_parts = {device.whole for device in devices if device.is_part and held.get(device.name)}
    taken_wholes = {device.whole for device in devices if not device.is_part and held.get(device.name)}
    found: dict[str, float | None] = {}
    for device in devices:
        if held.get(device.name):
            found[device.name] = _left_of(device.content, held[device.name])
        elif device.whole in (taken_wholes if device.is_part else taken_parts):
            found[device.name] = 0.0
        else:
            found[device.name] = _fits(_needs(device.content), left)
    return found


def text_of(device: Mapping[str, Any], name: str) -> str:
    """A text among the attributes, with or without the domain of its driver; empty: there is none."""
    value = _value(device, name, "string")
    return value if isinstance(value, str) else ""


def _value(device: Mapping[str, Any], name: str, kind: str) -> object:
    for key, value in _map(device.get("attributes")).items():
        if isinstance(key, str) and key.rpartition("/")[2] == name:
            return _map(value).get(kind)
    return None


def _id(name: str, device: Mapping[str, Any]) -> str:
    return text_of(device, "uuid") or name


def _stated(device: PoolDevice) -> int | None:
    for name in ("parentIndex", "parentMinor") if device.is_part else ("index", "minor"):
        value = _value(device.content, name, "int")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
            return value
    found = _NUMBERED.match(device.name)
    return int(found[1]) if found is not None and int(found[1]) <= MAX_NUMBER else None


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [
        (text.isdigit(), int(text) if text.isdigit() else 0, text)
        for text in re.split(r"([0-9]{1,18})", name)
        if text and text.isascii()
    ]


def _largest(listed: Sequence[tuple[str, Mapping[str, Any]]], totals: Needs) -> dict[str, str]:
    """By device that takes a part of a set of counters only: the device that takes the most of it, else the set.

    Where several take as much and only one of them can be held (the modes of a device), it is the one with the most memory,
    and of these the first by name.
    """
    by_set: dict[str, list[tuple[str, str, Needs]]] = {}
    memory = {name: _memory_of(content) or 0.0 for name, content in listed}
    for name, content in listed:
        needs = _needs(content)
        sets = {counter_set for counter_set, _ in needs}
        if len(sets) == 1:
            by_set.setdefault(sets.pop(), []).append((name, _id(name, content), needs))
    found: dict[str, str] = {}
    for counter_set, members in by_set.items():
        largest = [item for item in members if all(_covers(item[2], other[2]) for other in members)]
        if len(largest) > 1 and _only_one(largest[0][2], totals):
            largest = [min(largest, key=lambda item: (-memory[item[0]], _natural(item[0])))]
        if len(members) == 1 or len(largest) > 1:
            continue
        whole = largest[0] if largest else ("", counter_set, {})
        found |= {name: whole[1] for name, _, _ in members if name != whole[0]}
    return found


def _at_address(listed: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """By device that is a partition of what is at its PCI address, or the same for passthrough: the whole device, else the address."""
    by_address: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, content in listed:
        address = text_of(content, "pciBusID")
        if address:
            by_address.setdefault(address, []).append((name, content))
    found: dict[str, str] = {}
    for address, members in by_address.items():
        partitions = {name for name, content in members if _PARTITION.search(text_of(content, "type"))}
        passed = {name for name, content in members if text_of(content, "type") == "vfio"}
        wholes = [item for item in members if item[0] not in partitions | passed]
        if len(wholes) > 1:
            continue
        whole = _id(*wholes[0]) if wholes else address
        found |= dict.fromkeys(partitions | passed if wholes else partitions, whole)
    return found


def _covers(more: Needs, less: Needs) -> bool:
    return all(amount is not None and (more.get(key) or 0.0) >= amount for key, amount in less.items())


def _only_one(needs: Needs, totals: Needs) -> bool:
    """Whether the counters have no second time what such a device takes."""
    amounts = [(amount, totals.get(key)) for key, amount in needs.items()]
    return any(amount is not None and there is not None and 2 * amount > there + ROUNDING for amount, there in amounts)


def _totals(counters: Iterable[Mapping[str, Any]]) -> Needs:
    return {(name, counter): amount for entry in counters for name, counter, amount in _amounts(entry, "name")}


def _needs(device: Mapping[str, Any]) -> Needs:
    entries = device.get("consumesCounters")
    listed = entries if isinstance(entries, list) else []
    return {(name, counter): amount for entry in listed for name, counter, amount in _amounts(entry, "counterSet")}


def _amounts(entry: object, key: str) -> list[tuple[str, str, float | None]]:
    named = _map(entry)
    return [
        (str(named.get(key, "")), str(counter), quantity(_map(amount).get("value")))
        for counter, amount in _map(named.get("counters")).items()
    ]


def _fits(needs: Needs, left: Needs) -> float | None:
    for key, amount in needs.items():
        rest = left.get(key)
        if amount is None or rest is None:
            return None
        if rest + ROUNDING < amount:
            return 0.0
    return 1.0


def _left_of(device: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> float | None:
    """What claims have left of a device. One that takes several (KEP-5075) is shared by its memory."""
    if device.get("allowMultipleAllocations") is not True:
        return 0.0
    size = _memory_of(device)
    parts = [quantity(_map(result.get("consumedCapacity")).get("memory")) for result in results]
    known = [part for part in parts if part is not None and part >= 0]
    if size is None or size <= 0 or len(known) != len(parts):
        return None
    return max(0.0, 1 - sum(known) / size)


def _memory_of(device: Mapping[str, Any]) -> float | None:
    memory = _map(device.get("capacity")).get("memory")
    return quantity(memory.get("value") if isinstance(memory, Mapping) else memory)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
