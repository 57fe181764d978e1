"""Starts processes in the order of their dependencies, keeps them alive, and leaves none behind.

1. Every process waits until what it depends on is ready, then starts; independent ones start at the same time.
2. A process that ends is started again after a back-off that doubles up to a bound and begins anew after a stable period.
   During the first start a few failures in a row, or a readiness that does not come, end the whole stack with an
   error that names the process and shows the end of its log. After that the supervisor never gives up.
3. Stopping goes the other way round: a process is asked to end when nothing that depends on it runs any more, and killed
   with all its descendants when it does not end in time.
4. Every change is written to ``stack.json``. A supervisor that is killed itself cannot stop anything; the next one on the same
   directory ends what that file names before it starts (``claimed``).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from meridian.embedded import leftovers
from meridian.embedded.child import BackOff, Child, StackStartError
from meridian.embedded.process import ProcessSpec
from meridian.embedded.state import ProcessRef, StackPhase, StackState, read_state, write_state
from meridian.errors import ConfigurationError, ConflictError


class StackRunningError(ConflictError):
    """Another supervisor owns the directory."""

    code = "STACK_RUNNING"


def stop_order(specs: Sequence[ProcessSpec]) -> dict[str, tuple[str, ...]]:
    """For each process the names of those that depend on it and must end before it.

    Raises ConfigurationError for a name that occurs twice, an unknown dependency or a circle.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"a process name occurs twice among {', '.join(names)}")
    unknown = sorted({needed for spec in specs for needed in spec.depends_on} - set(names))
    if unknown:
        raise ConfigurationError(f"unknown dependency: {', '.join(unknown)}")
    settled: set[str] = set()
    remaining = list(specs)
    while remaining:
        possible = [spec for spec in remaining if settled.issuperset(spec.depends_on)]
        if not possible:
            raise ConfigurationError(f"circular dependency among {', '.join(spec.name for spec in remaining)}")
        settled.update(spec.name for spec in possible)
        remaining = [spec for spec in remaining if spec.name not in settled]
    return {name: tuple(spec.name for spec in specs if name in spec.depends_on) for name in names}


@contextlib.contextmanager
def claimed(state_dir: Path) -> Iterator[str]:
    """Own ``state_dir`` for the life of the block: ends what a killed supervisor left there, and yields the stack's id.

    Raises StackRunningError while another supervisor owns it.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack_id = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:16]
    with (state_dir / "supervisor.lock").open("w") as lock:  # the system frees it when we die, however we die
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackRunningError(f"a stack already runs in {state_dir}") from None
        state = read_state(state_dir)
        found = leftovers.members(state) if state is not None else leftovers.marked(stack_id)
        leftovers.end(found, grace_s=3.0)
        yield stack_id


class Supervisor:
    """Runs one set of processes once: ``start``, then ``stop``; ``run`` does both around a wait for a signal."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        state_dir: Path,
        stack_id: str,
        ports: Mapping[str, int] | None = None,
        urls: Mapping[str, str] | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._dependents = stop_order(specs)
        own = ProcessRef(os.getpid(), psutil.Process().create_time())
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._state = StackState(stack_id, StackPhase.STARTING, own, started_at, dict(ports or {}), dict(urls or {}))
        self._children = {spec.name: Child(spec, stack_id, back_off or BackOff(), self._changed) for spec in specs}

    async def start(self) -> None:
        """Start everything and return when all are ready.

        Raises StackStartError, after everything is stopped again, for the first process that does not become ready.
        """
        self._enter(StackPhase.STARTING)
        for child in self._children.values():
            child.launch([self._children[name].ready for name in child.spec.depends_on])
        try:
            await asyncio.gather(*(child.ready for child in self._children.values()))
        except StackStartError as error:
            self._state = replace(self._state, failure=error.failure)
            await self.stop(StackPhase.FAILED)
            raise
        self._enter(StackPhase.READY)

    async def stop(self, outcome: StackPhase = StackPhase.STOPPED) -> None:
        """Stop everything, dependents first; nothing that carries the stack's mark is left."""
        self._enter(StackPhase.STOPPING)
        stopping: dict[str, asyncio.Task[None]] = {}

        async def stop_after_dependents(name: str) -> None:
            await asyncio.gather(*(stopping[dependent] for dependent in self._dependents[name]))
            await self._children[name].stop()

        for name in self._children:
            stopping[name] = asyncio.create_task(stop_after_dependents(name))
        await asyncio.gather(*stopping.values())
        await asyncio.to_thread(leftovers.end, leftovers.marked(self._state.stack_id), grace_s=0.0)
        self._enter(outcome)

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Start, keep everything alive until ``stop_requested`` is set, also during the start, and stop.

        Raises StackStartError like ``start``.
        """
        starting = asyncio.create_task(self.start())
        asked = asyncio.create_task(stop_requested.wait())
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        else:
            try:
                starting.result()
            except StackStartError:
                asked.cancel()
                raise
            await asked
        await self.stop()

    def _changed(self) -> None:
        self._state = replace(self._state, processes=tuple(child.record for child in self._children.values()))
        try:
            write_state(self._state_dir, self._state)
        except OSError as error:  # a disk that is full is no reason to lose sight of a process
            print(f"the state of the stack could not be written: {error}", file=sys.stderr, flush=True)

    def _enter(self, phase: StackPhase) -> None:
        self._state = replace(self._state, phase=phase)
        self._changed()
