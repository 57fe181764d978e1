"""From a name as vendors, tools and benchmark lists write it to a chip: looked up, never guessed.

Steps: (1) spelling is made canonical: case, width, separators, vendor words, power in brackets, "80 GB" and "80G";
(2) a count is split off ("2x", "4xV100", "A100 * 8", "8卡"); (3) labels of machines in front of it and of versions behind it
are taken away one by one, if they are known labels or a count stands between, until what is left is an alias, whole, but for a
memory ("3090 24GB", "(24564 MiB)", both), which must then be that of the chip, and the kind of memory behind it ("GDDR6X");
(4) a type of a cloud's machines, or a slice of TPUs ("v5p-64"), stands for its accelerators, as many as it has; (5) a maker
that the name states must be that of the chip ("Tesla M4" is no M4 of Apple).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAKERS = {
    "nvidia": "nvidia tesla geforce 英伟达",
    "amd": "amd instinct radeon",
    "huawei": "huawei 华为",
    "intel": "habana intel",
    "graphcore": "graphcore",
    "cambricon": "cambricon 寒武纪",
    "hygon": "hygon 海光",
    "iluvatar": "iluvatar corex 天数智芯 天数",
    "metax": "metax 沐曦",
    "biren": "biren 壁仞 壁仞科技",
    "kunlunxin": "kunlunxin 昆仑",
    "enflame": "enflame 燧原 燧原科技",
    "moorethreads": "moore threads mthreads 摩尔线程",
    "tenstorrent": "tenstorrent",
    "qualcomm": "qualcomm",
    "furiosa": "furiosa",
}
_MAKER = {word: vendor for vendor, words in _MAKERS.items() for word in words.split()}
# Of these a cloud may be meant, whose chips are of any maker.
_NEUTRAL = "google aws npu gpu gpus accelerator accelerators card chip cloud 加速卡 训练卡 推理卡 单卡"
_VENDOR_WORDS = frozenset((*_MAKER, *_NEUTRAL.split()))
_SPLIT_AFTER = (
    "英伟达",
    "华为",
    "寒武纪",
    "海光",
    "天数智芯",
    "沐曦",
    "摩尔线程",
    "燧原科技",
    "燧原",
    "壁仞科技",
    "壁仞",
)
# Labels that benchmark lists put before a chip: owners and kinds of machines.
_LABELS = frozenset(
    ("lambdacloud", "lambdaod", "lambda", "1cc", "dell", "delltexas", "texas", "smc", "raidz1", "ngc", "azure", "gcp")
)
# What npu-exporter puts behind a chip's name: its kind and version, as in "910B3-Ascend-V1".
_KINDS = frozenset({"ascend"})
_ADDRESS = re.compile(r"^\d{1,3}([-.]\d{1,3}){3}$")
_TRAILING = re.compile(r"^(gen\d|cts)$")
_VERSION = re.compile(r"^v\d$")
_COUNT = re.compile(r"^(\d{1,5})[x×*]$|^[x×*](\d{1,5})$")
_MEMORY = re.compile(r"^(?:(\d{1,4})gb|(\d{4,7})mib)$")
_REMARK = re.compile(r"^([^()]+)\(([^()]+)\)\s*$")
# What a run used, told behind the chip: "(cuDNN 5005)", "(ROCm 6.2)".
_SOFTWARE = re.compile(
    r"\s*(?:cudnn|cuda|rocm|cann|tensorrt|pytorch|tensorflow|driver)(?:[\s-]*v?\d[\w.]*)?\s*$", re.IGNORECASE
)
_MEMORY_KIND = re.compile(r"^(gddr\d[xw]?|lpddr\dx?|hbm\d?e?)$")
_SEPARATORS = re.compile(r"[\s_,/()\[\]|\u2010-\u2015-]+")
_LEAST_VISIBLE = 0.92
"""Of a chip's memory, at least so much is what tools report in MiB: some of it is kept for error correction."""
# Behind the generation of a slice stands the number of its TensorCores, from v5e and v6e on that of its chips.
_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1}
_SLICE = re.compile(
    rf"^(?:(\d{{1,4}})\s*x[\s-]*)?(?:google\s+)?(?:cloud[\s-]+)?(?:tpu[\s_-]*)?({'|'.join(_CORES_PER_CHIP)})[-_](\d{{1,5}})$"
)
_BRACKETS = re.compile(r"\((?:r|tm|c|\d+\s*w)\)|[®™]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name stands for: ``chip_id`` or, when None, the ``reason`` and the chips it may mean; ``count`` if stated."""

    name: str
    chip_id: str | None
    count: int | None = None
    reason: str = ""
    candidates: tuple[str, ...] = ()
    is_machine: bool = False
    """The name is that of a type of machine; ``count`` is what the machine has, of which a run may use fewer."""


def canonical(name: str) -> str:
    """The spelling under which a name without count and labels is looked up."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    text = unicodedata.normalize("NFKC", _BRACKETS.sub(" ", name)).lower()
    for word in _SPLIT_AFTER:
        text = text.replace(word, f" {word} ")
    text = re.sub(r"(?<![a-z0-9])(\d{1,5})[x×*](?=[a-z])(?!x?large)", r" \1x ", text)
    text = re.sub(r"(?<![a-z0-9])(\d{1,2})(?:\s*卡|-gpus?(?![a-z0-9]))|\((\d{1,3})\s+gpus?\)", r" \1\2x ", text)
    text = re.sub(r"(\d{1,3})[-.](\d{1,3})[-.](\d{1,3})[-.](\d{1,3})(?!\d)", r" \1.\2.\3.\4 ", text)
    text = re.sub(r"(?<=\d)\s*g(?:i?b)?(?![a-z0-9])", "gb", text)
    text = re.sub(r"(?<![a-z0-9.])(\d+)\s+gb", r"\1gb", text)
    text = re.sub(r"(?<![a-z0-9.])(\d{4,7})\s*mi?b(?![a-z0-9])", r"\1mib", text)
    text = re.sub(r"(?:\s[x×]|[*])\s*(\d{1,5})(?=\s|$)", r" x\1 ", text)
    text = re.sub(r"(\d)\s+([x×*])\s", r"\1x ", text)
    return [word for word in re.split(_SEPARATORS, text) if word and word not in _VENDOR_WORDS]


def _makers(name: str) -> set[str]:
    text = unicodedata.normalize("NFKC", _BRACKETS.sub(" ", name)).lower()
    for word in _SPLIT_AFTER:
        text = text.replace(word, f" {word} ")
    return {_MAKER[word] for word in re.split(_SEPARATORS, text) if word in _MAKER}


def resolve(
    name: str,
    aliases: Mapping[str, tuple[str, ...]],
    memory_gib: Mapping[str, float | None],
    machines: Mapping[str, tuple[str, int]],
    vendors: Mapping[str, str],
) -> Resolution:
    """Look ``name`` up in ``aliases`` (canonical alias -> ids, one or the members of a family) and ``machines`` (canonical type
    -> chip and number).

    ``memory_gib`` by chip decides whether a memory in the name belongs to what the rest of it means; None is a chip that is sold
    with any; ``vendors`` by chip whether a maker in the name does. The answer's ``chip_id`` is None and ``candidates`` are the
    members when an alias stands for several chips. A remark in brackets behind a name ("A10G (AWS g5.xlarge)") is passed over
    if it means the same chip, or software with its version.
    """
    found = _look_up(name, aliases, memory_gib, machines)
    remark = _REMARK.match(name)
    if found.chip_id is None and remark:
        outer, inner = (_look_up(part, aliases, memory_gib, machines) for part in remark.groups())
        if outer.chip_id is not None and _SOFTWARE.match(remark[2]):
            found = outer
        elif outer.chip_id is not None and inner.chip_id == outer.chip_id:
            counted = inner if outer.count is None else outer
            found = Resolution(name, outer.chip_id, counted.count, is_machine=counted.is_machine)
    meant = (found.chip_id,) if found.chip_id is not None else found.candidates
    makers = {vendors[chip_id] for chip_id in meant} & set(_MAKERS.keys() | {"apple"})
    stated = _makers(name)
    if stated and makers and not stated & makers:
        reason = f"{' or '.join(meant)} is of another maker than the name says"
        return Resolution(name, None, found.count, reason)
    return found


def _look_up(
    name: str,
    aliases: Mapping[str, tuple[str, ...]],
    memory_gib: Mapping[str, float | None],
    machines: Mapping[str, tuple[str, int]],
) -> Resolution:
    words = _words(name)
    found = aliases.get("".join(words))
    count = None
    machine = machines.get("".join(words)) if found is None else None
    if machine is not None:
        return Resolution(name, machine[0], machine[1], is_machine=True)
    tpu = _SLICE.match(name.strip().lower()) if found is None else None
    if tpu is not None:
        slices, generation, size = int(tpu[1] or 1), tpu[2], int(tpu[3])
        chip = aliases.get("tpu" + generation.replace("litepod", "e"))
        chips, left = divmod(size, _CORES_PER_CHIP[generation])
        if chip is not None and slices * chips and not left:
            return Resolution(name, chip[0], slices * chips, is_machine=True)
    if found is None:
        for rest, counted in _without_labels(words):
            words, count = rest, counted
            found = aliases.get("".join(rest)) if rest else None
            if found is not None:
                break
    for rest, stated in _without_memory(words) if found is None else ():
        found = aliases.get("".join(rest))
        if found is None:
            continue
        if all(_has_memory(memory_gib[chip_id], each) for chip_id in found for each in stated):
            break
        return Resolution(name, None, count, f"{' or '.join(found)} has another memory in the catalogue")
    if found is None:
        return Resolution(name, None, count, "the name is not in the alias table")
    if len(found) > 1:
        return Resolution(name, None, count, "the name states no variant", found)
    return Resolution(name, found[0], count)


def _without_labels(words: list[str]) -> Iterator[tuple[list[str], int | None]]:
    """The words without a label or count more each time, and the count so far."""
    count = None
    start = 0
    for position, word in enumerate(words[:-1]):
        match = _COUNT.match(word)
        if match and match[1]:
            # What stands before a count names the machine, not the chip.
            count, start = int(match[1]), position + 1
    words = words[start:]
    while words and words[0] in _LABELS:
        words = words[1:]
    yield words, count
    while words:
        match = _COUNT.match(words[-1])
        if match and count is None:
            count = int(match[1] or match[2])
        elif _VERSION.match(words[-1]):
            # Elsewhere it may be a generation of chips.
            if len(words) < 2 or not (_ADDRESS.match(words[-2]) or words[-2] in _KINDS):
                break
        elif not (_TRAILING.match(words[-1]) or _ADDRESS.match(words[-1]) or (words[-1] in _KINDS and len(words) > 1)):
            break
        words = words[:-1]
        yield words, count


def _without_memory(words: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The words without the memory that was measured (in MiB), then without any; each with what was taken away."""
    measured = [word for word in words if word.endswith("mib") and _MEMORY.match(word)]
    stated = [word for word in words if _MEMORY.match(word)]
    kinds = [word for word in words if _MEMORY_KIND.match(word)]
    if kinds and len(kinds) < len(words):
        yield [word for word in words if word not in kinds], []
    for taken in (measured, stated):
        if taken and len(taken) < len(words):
            yield [word for word in words if word not in taken], taken
    bare = [word for word in words if not _MEMORY.match(word) and not _MEMORY_KIND.match(word)]
    if bare and len(bare) < len(words):
        yield bare, stated


def _has_memory(actual_gib: float | None, stated: str) -> bool:
    match = _MEMORY.match(stated)
    if match is None:
        return False
    if actual_gib is None:
        return True
    if match[1]:
        return float(match[1]) == actual_gib
    return _LEAST_VISIBLE <= float(match[2]) / 1024 / actual_gib <= 1
