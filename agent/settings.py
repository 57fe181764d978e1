"""The agent's configuration file (YAML): its domain, and beside it how it connects. Wrong fields are named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from agent.kubernetes_settings import LEAST_LEASE_S, KubernetesScheduling
from agent.probing.address import address_of
from agent.sensing_settings import Benchmarking, Exporter, OwnResource, ResourceCommands, Scraping, Source
from meridian import plain_yaml
from meridian.errors import ConfigurationError

POWER_STATE_LABEL = "power_state"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]


MOST_BYTES = 2**60
MOST_MICRO_UNITS = 10**15
"""Of a price."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AcceleratorGroup(_Section):
    """``count`` equal accelerators of a node. Watts are for the estimate of emulated ones; 0 unknown."""

    vendor: str
    model: str
    count: int = Field(1, ge=1, le=1024)
    memory_bytes: int = Field(0, ge=0, le=MOST_BYTES)
    peak_flops: float = Field(0.0, ge=0)
    idle_watts: float = Field(0.0, ge=0)
    peak_watts: float = Field(0.0, ge=0)
    sleep_watts: float = Field(0.0, ge=0)
    uuids: tuple[str, ...] = ()


class Node(_Section):
    """A machine. ``address`` is where ranks of other nodes reach it. One of an emulated domain with ``wake_s`` can be put to sleep,
    and is awake so long after it was asked to wake; with the label ``power_state: asleep`` it sleeps when the agent starts."""

    node_id: Name
    cpus: float = Field(0.0, ge=0)
    memory_bytes: int = Field(0, ge=0, le=MOST_BYTES)
    site: str = ""
    address: str = "127.0.0.1"
    labels: dict[str, str] = {}
    wake_s: float = Field(0.0, ge=0, le=86_400)
    aliases: dict[str, str] = {}
    accelerators: tuple[AcceleratorGroup, ...] = ()
    exporters: tuple[Exporter, ...] = ()


class Link(_Section):
    """The way from this domain to another; the price is that of 1e9 bytes."""

    to_domain_id: Name
    rtt_s: float = Field(0.0, ge=0)
    bandwidth_bytes_per_s: float = Field(0.0, ge=0)
    price_micro_per_gb: int = Field(0, ge=0, le=MOST_MICRO_UNITS)
    currency: str = ""
    loss: float = Field(0.0, ge=0, le=1)
    # HOST:PORT on which the agent of that domain answers probes; empty: what is declared here is all that is known.
    probe: Annotated[str, StringConstraints(pattern=r"^(\S+:[0-9]{1,5})?$")] = ""

    @field_validator("probe")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value:
            address_of(value)
        return value


class Location(_Section):
    """Where the domain lies."""

    latitude_deg: float = Field(ge=-90, le=90)
    longitude_deg: float = Field(ge=-180, le=180)


class OwnScheduling(_Section):
    """The domain chooses its nodes itself: first fit over them, within limits of its own; 0: no limit."""

    kind: Literal["first_fit"] = "first_fit"
    most_units: int = Field(0, ge=0)
    # By what its tenant declares: what declares no limit is refused where there is one.
    most_time_s: float = Field(0.0, ge=0)


class SlurmScheduling(_Section):
    """Slurm chooses the nodes and the programs run in its allocations; every node's ``aliases.slurm`` is Slurm's name of it, where
    that is another than its ``node_id``. Agent and nodes see ``shared_dir`` and the agent's programs under the same paths."""

    kind: Literal["slurm"]
    partition: str = ""
    account: str = ""
    qos: str = ""
    # An expression of --constraint.
    features: str = ""
    # Slurm's names of accelerator models (Type= of gres.conf) by the words with which jobs ask for them.
    gres_types: dict[str, str] = {}
    # User-defined resources that Slurm counts.
    gres: frozenset[str] = frozenset()
    licences: frozenset[str] = frozenset()
    mps: bool = False
    # How long is waited for Slurm to begin a job before the unit is refused for now; shards wait 5 s for an answer.
    answer_s: float = Field(2.5, gt=0, le=4)
    # So many units that were refused for now keep their place in Slurm's queue.
    most_queued: int = Field(0, ge=0)
    # So many requests are answered side by side; those of one shard, and those about one unit, come one after another.
    answers_at_once: int = Field(4, ge=1, le=64)
    # An allocation that nobody takes up is given back after this.
    claim_s: float = Field(30.0, gt=0)
    # One that waits for its run ends by itself when the agent has been gone for so long.
    abandon_s: float = Field(120.0, gt=0)
    poll_s: float = Field(1.0, gt=0, le=60)
    # Folder of Slurm's programs, and what SLURM_CONF names; empty: those of the system.
    programs_dir: str = ""
    configuration: str = ""
    # The interpreter on the nodes; empty: the agent's own path.
    python: str = ""


def _kind_of_scheduling(content: object) -> str:
    kind = content.get("kind", "first_fit") if isinstance(content, dict) else getattr(content, "kind", "first_fit")
    return str(kind)


AnyScheduling = Annotated[
    Annotated[OwnScheduling, Tag("first_fit")]
    | Annotated[SlurmScheduling, Tag("slurm")]
    | Annotated[KubernetesScheduling, Tag("kubernetes")],
    Discriminator(_kind_of_scheduling),
]


class Domain(_Section):
    """The domain as declared. With ``own_scheduler`` Meridian names no nodes of it, but asks for resources (two levels)."""

    domain_id: Name
    name: str = ""
    region: str = ""
    owner: str = ""
    emulated: bool = False
    security_level: int = Field(0, ge=0, le=2**31 - 1)
    price_micro_per_accelerator_hour: int = Field(0, ge=0, le=MOST_MICRO_UNITS)
    currency: str = ""
    carbon_g_per_kwh: float = Field(0.0, ge=0)
    location: Location | None = None
    own_scheduler: AnyScheduling | None = None
    nodes: tuple[Node, ...] = Field(min_length=1)
    links: tuple[Link, ...] = ()
    # Exporters and sources that speak of the nodes by their names.
    exporters: tuple[Exporter, ...] = ()
    sources: tuple[Source, ...] = ()
    resources: tuple[OwnResource, ...] = ()

    @model_validator(mode="after")
    def _node_ids_are_unique(self) -> Domain:
        names = [node.node_id for node in self.nodes]
        if len(set(names)) != len(names):
            raise ValueError("two nodes have the same node_id")
        resources = [item.resource.name for item in self.resources]
        if len(set(resources)) != len(resources):
            raise ValueError("two resources have the same name")
        return self

    @property
    def sleeping(self) -> dict[str, float]:
        """Waking times, by node, of the emulated nodes that sleep when the agent starts."""
        asleep = {node.node_id for node in self.nodes if node.labels.get(POWER_STATE_LABEL) == "asleep"}
        return {node_id: wake_s for node_id, wake_s in self.can_sleep.items() if node_id in asleep}

    @property
    def can_sleep(self) -> dict[str, float]:
        """Waking times (s), by node, of the emulated nodes that can be put to sleep and woken."""
        if not self.emulated:
            return {}
        return {node.node_id: node.wake_s for node in self.nodes if node.wake_s > 0}


class ProbingSettings(_Section):
    """Probes between agents. ``port`` 0: those of others are not answered; ``transfer_bytes`` 0: bandwidth is not measured."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    interval_s: float = Field(default=5.0, gt=0)
    packets: int = Field(default=10, ge=1, le=100)
    transfer_bytes: int = Field(default=2 * 1024 * 1024, ge=0, le=16 * 1024 * 1024)
    transfer_interval_s: float = Field(default=600.0, gt=0)


class DeclaredIn(_Section):
    """The file that the section ``domain`` was made from, and where in it a field is, by its path below ``domain``."""

    file: str
    places: dict[str, str] = {}


class AgentSettings(_Section):
    """The whole file. Times in seconds."""

    domain: Domain
    declared_in: DeclaredIn | None = None
    kafka_bootstrap_servers: str
    # Empty: the agent does not register, and its nodes have no compute ids.
    identity_url: str = ""
    join_token: str = ""
    join_token_path: Path | None = None
    # Journals, grants and keys: on a disk of the agent's own machine.
    data_dir: Path
    # What programs use and write, seen under this path by every machine that runs them; default: the data directory.
    shared_dir: Path | None = None
    # Where programs keep checkpoints; default: checkpoints/ in the shared directory.
    checkpoint_dir: Path | None = None
    http_host: str = "127.0.0.1"
    http_port: int = Field(0, ge=0, le=65535)
    heartbeat_hz: float = Field(5.0, gt=0, le=50)
    report_interval_s: float = Field(3.0, gt=0)
    # Vital signs are looked at this often; a node whose signs changed is reported at once.
    watch_interval_s: float = Field(0.5, gt=0)
    probing: ProbingSettings = ProbingSettings()
    scraping: Scraping = Scraping()
    benchmark: Benchmarking = Benchmarking()
    resource_commands: ResourceCommands = ResourceCommands()
    lease_s: float = Field(10.0, ge=4)
    restart_after_s: float = Field(15.0, ge=0)
    log_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    log_retention_s: float = Field(7 * 86400.0, gt=0)
    log_level: str = "INFO"

    @field_validator("join_token_path", "data_dir", "shared_dir", "checkpoint_dir")
    @classmethod
    def _is_a_path(cls, value: Path | None) -> Path | None:
        try:
            if value is not None:
                value.resolve()
        except (ValueError, RuntimeError) as error:  # a byte that no name has, links that lead to themselves
            raise ValueError(f"is no path: {error}") from None
        return value

    @model_validator(mode="after")
    def _can_measure(self) -> AgentSettings:
        if self.benchmark.enabled and isinstance(self.domain.own_scheduler, SlurmScheduling | KubernetesScheduling):
            whose = "Slurm's" if isinstance(self.domain.own_scheduler, SlurmScheduling) else "Kubernetes'"
            raise ValueError(f"benchmark.enabled: the nodes are {whose}; submit `meridian probe` as a job of its own")
        return self

    @model_validator(mode="after")
    def _suits_kubernetes(self) -> AgentSettings:
        scheduling = self.domain.own_scheduler
        if not isinstance(scheduling, KubernetesScheduling):
            return self
        if self.lease_s < LEAST_LEASE_S:
            raise ValueError(
                f"lease_s: {self.lease_s:g} s are too few for Kubernetes, which counts them in whole seconds and late; at least"
                f" {LEAST_LEASE_S:g}"
            )
        if scheduling.volume is not None:
            below = Path(scheduling.volume.path)
            for name, path in (("shared_dir", self.shared), ("checkpoint_dir", self.checkpoints)):
                if not path.is_relative_to(below):
                    raise ValueError(
                        f"{name}: {path} is not below {below} (domain.own_scheduler.volume.path), so pods do not see it"
                    )
        return self

    @model_validator(mode="after")
    def _keeps_its_lease(self) -> AgentSettings:
        least = 4 / self.lease_s
        if self.heartbeat_hz < least:
            raise ValueError(
                f"heartbeat_hz: {self.heartbeat_hz:g} heartbeats a second do not keep a lease of {self.lease_s:g} s (lease_s) when one"
                f" is lost; at least {least:g} are needed"
            )
        return self

    def token(self) -> str:
        """The join token, from the file when one is named.

        :raises ConfigurationError: the file cannot be read.
        """
        if self.join_token_path is None:
            return self.join_token
        try:
            return self.join_token_path.read_text().strip()
        except OSError as error:
            raise ConfigurationError(f"join_token_path: {error}") from None

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints of this domain's runs are kept."""
        return self.checkpoint_dir or self.shared / "checkpoints"

    @property
    def shared(self) -> Path:
        """Where logs and working directories of runs lie, and what a cluster's scheduler and its nodes exchange."""
        return self.shared_dir or self.data_dir


def read_settings(path: Path) -> AgentSettings:
    """Read the configuration file.

    :raises ConfigurationError: names each field that is wrong.
    """
    try:
        content = plain_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"configuration {path}: {error}") from None
    try:
        settings = AgentSettings.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(_problem(path, content, item["loc"], item["msg"]) for item in error.errors())
        raise ConfigurationError(problems) from None
    return settings.model_copy(
        update={
            "data_dir": settings.data_dir.resolve(),
            "shared_dir": settings.shared_dir and settings.shared_dir.resolve(),
            "checkpoint_dir": settings.checkpoint_dir and settings.checkpoint_dir.resolve(),
        }
    )


def _problem(path: Path, content: object, location: tuple[int | str, ...], message: str) -> str:
    """What is wrong with a field of the file, or of the file that it was made from."""
    section, *field = [str(part) for part in location] or [""]
    declared = content.get("declared_in") if section == "domain" and isinstance(content, dict) else None
    try:
        origin = DeclaredIn.model_validate(declared)
    except ValidationError:
        return ": ".join(part for part in (f"configuration {path}", ".".join([section, *field]), message) if part)
    known = next(size for size in range(len(field), -1, -1) if not size or ".".join(field[:size]) in origin.places)
    place = origin.places.get(".".join(field[:known]), "domain")
    return f"domains file {origin.file}, {'.'.join([place, *field[known:]])}: {message}"
