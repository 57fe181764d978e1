"""The agent's view of one Slurm: its programs are called, and what they said last is kept."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.collectors.unknown import UnknownError
from agent.engines.local.environment import base_environment
from agent.engines.own_scheduler import UnitName
from agent.engines.slurm import words
from agent.engines.slurm.allocation import Site, submitted_job
from meridian.errors import UnavailableError

_log = logging.getLogger(__name__)

CALL_LIMIT_S = 20.0
ORDERS_AT_ONCE = 8
"""So many jobs are submitted or cancelled at once at most: each is a process here and a thread of the controller."""
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


class SlurmSilentError(UnavailableError):
    """Slurm's controller does not answer, or not in the form that was asked for."""

    code = "SLURM_SILENT"
    title = "Slurm does not answer"


class SlurmRefusedError(Exception):
    """Slurm does not take the job; the text is its own reason."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Where Slurm is and how it is used. Times in seconds.

    ``shared_dir`` is on a file system that agent and nodes see under the same path, as are the program files of the agent and
    ``python``. ``node_names``: Slurm's name of each node by Meridian's. ``programs_dir`` empty: those of PATH; ``configuration``
    empty: Slurm's own default. ``abandon_s``: a held allocation whose agent is gone ends after it.
    """

    domain_id: str
    shared_dir: Path
    node_names: Mapping[str, str]
    site: Site = field(default_factory=Site)
    programs_dir: str = ""
    configuration: str = ""
    python: str = sys.executable
    poll_s: float = 1.0
    abandon_s: float = 120.0
    # For how long what Slurm said of its nodes counts while it is silent.
    trust_s: float = 120.0


class Cluster:
    """See the module. ``jobs`` are the user's, also those that have ended a short time ago; ``nodes`` all that Slurm
    has. ``heard_at_s`` (nodes) and ``jobs_at_s`` are the loop's times of these words."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        self.jobs: Mapping[int, words.QueuedJob] = {}
        self.nodes: Mapping[str, words.SlurmNode] = {}
        self.heard_at_s = float("-inf")
        self.jobs_at_s = float("-inf")
        self.unreadable_count = 0
        """What of the queue and of nodes could not be read, each once as long as it was there."""
        self._odd: dict[str, frozenset[str]] = {}
        self._asking = asyncio.Lock()
        self._ordering = asyncio.Semaphore(ORDERS_AT_ONCE)
        self._node_of = {name: node_id for node_id, name in settings.node_names.items()}
        self._environment = base_environment(os.environ) | {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
        if settings.configuration:
            self._environment["SLURM_CONF"] = settings.configuration

    def job_name(self, name: UnitName) -> str:
        """What a unit's job is called in Slurm; it says whose it is."""
        return f"meridian:{self.settings.domain_id}:{name.job_id}:{name.unit_index}:{name.epoch}"

    def unit_of(self, job: words.QueuedJob) -> UnitName | None:
        """The unit of a job; None: it is none of this domain's."""
        parts = job.name.split(":")
        if len(parts) != 5 or parts[:2] != ["meridian", self.settings.domain_id]:
            return None
        try:
            return UnitName(parts[2], int(parts[3]), int(parts[4]))
        except ValueError:
            return None

    def place_of(self, name: UnitName, job: int) -> Path:
        """The folder of an allocation."""
        return self.settings.shared_dir / self.folder_name(name) / str(job)

    @staticmethod
    def folder_name(name: UnitName) -> str:
        """The folder of a unit's epoch."""
        return f"{name.job_id}.{name.unit_index}.{name.epoch}"

    def node_id(self, name: str) -> str | None:
        """Meridian's name of a node of Slurm's; None: the domain does not declare it."""
        return self._node_of.get(name)

    # --- questions -------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask for the queue and the nodes.

        :raises SlurmSilentError: see there; what was known before stays.
        """
        await asyncio.gather(self.look_at_jobs(), self.look_at_nodes())

    async def look_at_jobs(self, since_s: float = math.inf) -> None:
        """Ask for the queue; not, when it was asked for after the loop's time ``since_s`` (by another who waits, say).

        :raises SlurmSilentError: see there.
        """
        async with self._asking:
            if self.jobs_at_s >= since_s:
                return
            mine = str(os.getuid())
            asked_s = asyncio.get_running_loop().time()
            text = await self._ask("squeue", "-h", "-a", "-t", "all", "-u", mine, "-o", words.QUEUE_FORMAT)
            try:
                self.jobs, odd = words.queue_of(text)
            except ValueError as error:
                raise SlurmSilentError(str(error)) from None
            form = "is not of the form that was asked for; the other jobs are known"
            self._tell("squeue", [f"{line[:80]!r} {form}" for line in odd])
            self.jobs_at_s = asked_s

    def _tell(self, program: str, odd: Collection[str]) -> None:
        """Log and count what cannot be read, each text once as long as it is there."""
        known = self._odd.get(program, frozenset())
        for text in dict.fromkeys(odd):
            if text not in known:
                self.unreadable_count += 1
                _log.warning("%s: %s", program, text)
        self._odd[program] = frozenset(odd)

    async def look_at_nodes(self) -> None:
        """Ask for the nodes.

        :raises SlurmSilentError: see there.
        """
        text = await self._ask("scontrol", "show", "node", "-d", "-o")
        try:
            self.nodes, odd = words.nodes_of(text)
        except ValueError as error:
            raise SlurmSilentError(str(error)) from None
        others = "the other nodes are known"
        self._tell("scontrol show node", [f"{key[:80]!r}: {why}; {others}" for key, why in odd.items()])
        self.heard_at_s = asyncio.get_running_loop().time()

    async def given(self, job: int) -> dict[str, tuple[int, ...] | None]:
        """Indices of the accelerators of a job by Slurm's node names; None: they have no numbers.

        :raises SlurmSilentError: see there.
        """
        text = await self._ask("scontrol", "show", "job", "-d", "-o", str(job))
        try:
            return words.given_of(text)
        except (ValueError, UnknownError) as error:
            raise SlurmSilentError(f"scontrol show job: {error}") from None

    # --- orders ----------------------------------------------------------------------------------------------------

    async def submit(self, name: UnitName, options: tuple[str, ...], arguments: str) -> int:
        """Ask for an allocation whose batch step is the holder with these arguments; its number.

        :raises SlurmRefusedError: Slurm does not take it, or its folder cannot be made.
        """
        folder = self.settings.shared_dir / self.folder_name(name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.touch()  # an empty one that is old would be removed before the job writes there
        except OSError as error:
            raise SlurmRefusedError(f"{folder}: {error.strerror}") from None
        script = f"#!/bin/sh\nexec {_quoted(self.settings.python)} -S -E -m agent.engines.slurm.holder {_quoted(arguments)}\n"
        always = ("--parsable", "--no-requeue", "--open-mode=append", f"--chdir={PACKAGE_ROOT}", "--export=ALL")
        async with self._ordering:
            code, said, complained = await self._call(
                "sbatch", *always, f"--output={folder}/out.%j.txt", *options, script=script.encode()
            )
        number = submitted_job(said)
        if code or number is None:
            raise SlurmRefusedError(words.refusal_of(complained))
        return number

    async def cancel(self, job: int) -> None:
        """End a job, whatever it does. One that has ended changes nothing; a Slurm that is silent is logged."""
        async with self._ordering:
            code, _, complained = await self._call("scancel", str(job))
        if code:
            _log.warning("scancel %d: %s", job, words.refusal_of(complained))

    # --- steps -----------------------------------------------------------------------------------------------------

    async def _ask(self, *argv: str) -> str:
        code, said, complained = await self._call(*argv)
        if code:
            raise SlurmSilentError(f"{argv[0]}: {words.refusal_of(complained)}")
        return said

    async def _call(self, program: str, *arguments: str, script: bytes | None = None) -> tuple[int, str, str]:
        """Exit status and output of one of Slurm's programs; 127 when there is none, 124 when it took too long."""
        path = str(Path(self.settings.programs_dir) / program) if self.settings.programs_dir else program
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL if script is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
            )
        except OSError as error:
            return 127, "", f"{path}: {error.strerror}"
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                said, complained = await process.communicate(script)
        except TimeoutError:
            return 124, "", f"no answer within {CALL_LIMIT_S:g} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, said.decode(errors="replace"), complained.decode(errors="replace")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
