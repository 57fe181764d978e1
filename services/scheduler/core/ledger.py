"""The ledger: which capacity, devices and ports the open runs hold, per node, address and tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.core.state import Run, RunState


@dataclass(slots=True)
class Held:
    """What runs hold on one node; ``devices`` gives the thousandths that are held of each device."""

    ranks: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    devices: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Usage:
    """What a tenant's runs hold."""

    cpus: float = 0.0
    accelerator_milli: int = 0

    @property
    def accelerators(self) -> float:
        """Accelerators, shares of one as parts."""
        return self.accelerator_milli / 1000.0


class Ledger:
    """Kept up by `move` with each change of a run; answers what is free without a look at the runs."""

    def __init__(self) -> None:
        self.nodes: dict[str, Held] = {}
        self.tenants: dict[str, Usage] = {}
        self.ports: dict[str, set[int]] = {}

    def move(self, before: Run | None, after: Run) -> None:
        """Account for a run that was ``before`` and is ``after``."""
        if before is not None and before.state is not RunState.ENDED:
            same = before.open_domains == after.open_domains and before.ranks == after.ranks
            if after.state is not RunState.ENDED and same:
                return
            self._book(before, -1)
        if after.state is not RunState.ENDED:
            self._book(after, 1)

    def used_ports(self, address: str) -> frozenset[int]:
        """Ports that open runs were given on an address."""
        return frozenset(self.ports.get(address, ()))

    def _book(self, run: Run, sign: int) -> None:
        tenant = self.tenants.setdefault(run.tenant_id, Usage())
        for rank in run.ranks:
            if rank.domain_id not in run.open_domains:
                continue
            held = self.nodes.setdefault(rank.node_id, Held())
            held.ranks += sign
            held.memory_bytes += sign * run.memory_bytes
            held.cpus = held.cpus + sign * run.cpus if held.ranks else 0.0
            tenant.cpus += sign * run.cpus
            tenant.accelerator_milli += sign * len(rank.devices) * rank.device_milli
            for device in rank.devices:
                held.devices[device] = held.devices.get(device, 0) + sign * rank.device_milli
                if held.devices[device] <= 0:
                    del held.devices[device]
            if not held.ranks:
                del self.nodes[rank.node_id]
        ports = {port for port in (run.master_port, run.service_port) if port}
        at_address = self.ports.setdefault(run.master_addr, set())
        if sign > 0:
            at_address |= ports
        else:
            at_address -= ports
