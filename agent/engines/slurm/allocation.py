"""What a unit needs as options of ``sbatch``, and the node lists that Slurm answers with. Text to text.

Source: manual pages of sbatch and scontrol (https://slurm.schedmd.com/sbatch.html).

``--mem`` and ``--gres`` are amounts per node, not per task. So they are used where a unit has one rank; several ranks, which Slurm
may pack as it likes, ask with ``--mem-per-cpu`` and ``--gpus-per-task``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.engines.own_scheduler import Constraints, Refusal
from meridian.hardware.accelerator_types import is_meant

MIB = 1024 * 1024
STRICT_SWITCH_WAIT = "24:00:00"
"""With ``--switches=1@TIME`` Slurm gives the wish up after TIME; a required topology must outlast the queue."""
MAX_HOSTS = 100_000
"""Of one list: a range that a garbled answer makes is refused before it fills the memory."""
_SUBMITTED = re.compile(r"([0-9]{1,18})(;\S+)?")
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Site:
    """What only the site knows.

    ``gres_types`` are Slurm's names (``Type=`` of gres.conf) by the accelerator models as jobs' types name them;
    ``gres`` and ``licences`` user-defined resources that Slurm counts as such. ``mps``: gres/mps gives out hundredths of a GPU.
    ``features`` is an expression of ``--constraint``.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    features: str = ""
    gres_types: Mapping[str, str] = field(default_factory=dict)
    gres: frozenset[str] = frozenset()
    licences: frozenset[str] = frozenset()
    mps: bool = False


def allocation_options(constraints: Constraints, site: Site, job_name: str) -> tuple[tuple[str, ...], ...] | Refusal:
    """Options for each way to satisfy a unit, to be tried in order (Slurm's ``--gres`` knows no "or"); or why there is none."""
    wrong = _not_expressible(constraints, site)
    if wrong:
        return Refusal(wrong)
    types: list[str] = [""]
    if constraints.accelerators and constraints.accelerator_types:
        types = [kind for wanted in constraints.accelerator_types for kind in _types_of(wanted, site)]
        if not types:
            return Refusal(f"Slurm knows no accelerators of {' or '.join(constraints.accelerator_types)} here")
    return tuple(_options(constraints, site, job_name, name) for name in dict.fromkeys(types))


def _types_of(wanted: str, site: Site) -> list[str]:
    """Slurm's names of the models that a type means; the one that is declared with just these words first."""
    models = sorted(site.gres_types, key=lambda model: model != wanted)
    return [site.gres_types[model] for model in models if model == wanted or is_meant("", model, (wanted,))]


def time_limit(seconds: float) -> str:
    """Seconds as ``days-hours:minutes:seconds``, as ``--time`` takes them; rounded up."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def submitted_job(text: str) -> int | None:
    """The job that ``sbatch --parsable`` names (``12``, with several clusters ``12;name``); None when it names none."""
    found = _SUBMITTED.fullmatch(text.strip())
    return int(found[1]) if found else None


def hosts_of(node_list: str) -> tuple[str, ...]:
    """The nodes of a list such as ``rack[1-2]n[01-03],login``: brackets are expanded from left to right.

    :raises ValueError: the list is not well formed, or names more than `MAX_HOSTS`.
    """
    hosts: list[str] = []
    for part in _split(node_list):
        names = [""]
        rest = part
        while rest:
            before, bracket, after = rest.partition("[")
            numbers, closed, rest = after.partition("]")
            if bracket and not closed:
                raise ValueError(f"node list {node_list!r}: a bracket is not closed")
            endings = _numbers(numbers, node_list) if bracket else [""]
            if len(hosts) + len(names) * len(endings) > MAX_HOSTS:
                raise ValueError(f"node list {node_list[:80]!r}: more than {MAX_HOSTS} nodes")
            names = [name + before + ending for name in names for ending in endings]
        hosts += names
    return tuple(hosts)


def _split(node_list: str) -> list[str]:
    """Parts between commas that stand outside of brackets."""
    parts, depth = [""], 0
    for letter in node_list.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in {0, 1}:
            raise ValueError(f"node list {node_list!r}: brackets do not match")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth or ("" in parts and parts != [""]):
        raise ValueError(f"node list {node_list!r}: a part is empty, or a bracket is not closed")
    return [part for part in parts if part]


def _numbers(text: str, node_list: str) -> list[str]:
    """``01-03,7`` as 01, 02, 03, 7: the width of the first number is kept."""
    found: list[str] = []
    for item in text.split(","):
        low, dash, high = item.partition("-")
        if not _WHOLE.fullmatch(low) or (dash and not (_WHOLE.fullmatch(high) and int(low) <= int(high))):
            raise ValueError(f"node list {node_list[:80]!r}: {item!r} is no range of numbers")
        if len(found) + int(high if dash else low) - int(low) >= MAX_HOSTS:
            raise ValueError(f"node list {node_list[:80]!r}: more than {MAX_HOSTS} nodes")
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high if dash else low) + 1)]
    return found


def _not_expressible(constraints: Constraints, site: Site) -> str:
    if constraints.accelerator_milli < 1000 and constraints.accelerators:
        if not site.mps:
            return "parts of an accelerator are not given out here (no gres/mps)"
        if constraints.ranks > 1 or constraints.accelerators > 1:
            return "gres/mps gives a part of one accelerator to one rank only"
    if constraints.avoid or constraints.service_port:
        return "Slurm keeps no units apart by labels or ports"
    for name, amount in constraints.resources:
        if name not in site.gres | site.licences:
            return f"Slurm does not count {name} here"
        if amount != int(amount):
            return f"Slurm counts {name} in whole numbers, not {amount:g}"
        if name in site.gres and constraints.ranks > 1:
            return f"Slurm counts {name} per node, so for one rank only"
    return ""


def _options(constraints: Constraints, site: Site, job_name: str, gres_type: str) -> tuple[str, ...]:
    single = constraints.ranks == 1
    cpus = max(math.ceil(constraints.cpus), 1)
    options = [f"--job-name={job_name}", f"--ntasks={constraints.ranks}", f"--cpus-per-task={cpus}"]
    if single:
        options.append("--nodes=1")
    if constraints.memory_bytes:
        name, parts = ("--mem", 1) if single else ("--mem-per-cpu", cpus)
        options.append(f"{name}={math.ceil(constraints.memory_bytes / parts / MIB)}M")
    gres = [f"{name}:{int(amount)}" for name, amount in constraints.resources if name in site.gres]
    kind = f"{gres_type}:" if gres_type else ""
    if constraints.accelerators and constraints.accelerator_milli < 1000:
        gres.append(f"mps:{kind}{math.ceil(constraints.accelerator_milli / 10)}")
    elif constraints.accelerators and single:
        gres.append(f"gpu:{kind}{constraints.accelerators}")
    elif constraints.accelerators:
        options.append(f"--gpus-per-task={kind}{constraints.accelerators}")
    if gres:
        options.append(f"--gres={','.join(gres)}")
    licences = [
        f"{name}:{int(amount) * constraints.ranks}" for name, amount in constraints.resources if name in site.licences
    ]
    if licences:
        options.append(f"--licenses={','.join(licences)}")
    if math.isfinite(constraints.time_limit_s):
        options.append(f"--time={time_limit(constraints.time_limit_s)}")
    if constraints.topology and not single:
        options.append(f"--switches=1@{STRICT_SWITCH_WAIT if constraints.topology_required else '00:00:01'}")
    if constraints.excluded_nodes:
        options.append(f"--exclude={','.join(sorted(constraints.excluded_nodes))}")
    where = {"partition": site.partition, "account": site.account, "qos": site.qos, "constraint": site.features}
    return (*options, *(f"--{name}={value}" for name, value in where.items() if value))
