"""What the agent's file says of sensing: exporters, documents of batch systems, limits of scraping, user-defined resources."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent.collectors.exposition import ExpositionLimits
from agent.commands import CommandLimits
from agent.user_resources import CommandPolicy
from meridian.resource_model import ResourceModel


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Exporter(_Section):
    """A Prometheus exporter and the table that reads it (a shipped one by name, one's own by path).

    ``prefix``: what its families begin with where the exporter lets one choose. ``deadline_s`` and ``interval_s`` 0: as for
    all (`Scraping`).
    """

    url: str
    table: str
    prefix: str = ""
    interval_s: float = Field(default=0.0, ge=0, le=86_400)
    deadline_s: float = Field(default=0.0, ge=0, le=300)


class Source(_Section):
    """Slurm's or Kubernetes' JSON, of a URL or of a command such as ``[sinfo, --json]``; it speaks of nodes by their names.

    ``headers``: of the request, a value ``file:PATH`` is read from a file each time (tokens).
    """

    url: str = ""
    command: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    interval_s: float = Field(default=0.0, ge=0, le=86_400)
    deadline_s: float = Field(default=0.0, ge=0, le=300)

    @model_validator(mode="after")
    def _is_one(self) -> Source:
        if bool(self.url) == bool(self.command):
            raise ValueError("a source has either a url or a command")
        return self


class Scraping(_Section):
    """How exporters are asked, and how much of an answer is read. Times in seconds."""

    interval_s: float = Field(default=5.0, gt=0, le=86_400)
    # For the whole of an answer, however slowly it comes.
    deadline_s: float = Field(default=3.0, gt=0, le=300)
    max_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    max_line_chars: int = Field(default=16_384, ge=64)
    max_labels: int = Field(default=64, ge=1)
    max_series: int = Field(default=100_000, ge=1)

    @property
    def limits(self) -> ExpositionLimits:
        """Bounds of the parser."""
        return ExpositionLimits(self.max_line_chars, self.max_labels, self.max_series)


class Benchmarking(_Section):
    """Probe runs that the agent makes by itself; their results enter the compute index. Times in seconds.

    A node is measured once in ``interval_s``, when nothing has run in the domain for ``idle_s``. A run that has not ended after
    ``deadline_s`` is ended, and one that work comes upon gives way. ``chip``: the name of what is measured, where the driver
    does not tell the right one.
    """

    enabled: bool = False
    interval_s: float = Field(default=86_400.0, ge=1, le=366 * 86_400)
    idle_s: float = Field(default=300.0, ge=0, le=86_400)
    deadline_s: float = Field(default=300.0, ge=1, le=3600)
    nice: int = Field(default=19, ge=0, le=19)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    sizes: Literal["full", "quick", "tiny"] = "full"
    chip: str = Field(default="", max_length=256)


class OwnResource(_Section):
    """A resource of the agent's own file: the unified resource model, and whether its command is a line for the shell."""

    resource: ResourceModel
    shell: bool = False

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, content: object) -> object:
        if not isinstance(content, dict) or "resource" in content:
            return content
        rest = {name: value for name, value in content.items() if name != "shell"}
        return {"resource": rest, "shell": content.get("shell", False)}


class ResourceCommands(_Section):
    """Limits of commands of resources; ``remote``: which of those that the network tells run here."""

    remote: Literal["none", "listed", "any"] = "none"
    programs: tuple[str, ...] = ()
    time_s: float = Field(default=5.0, gt=0, le=300)
    output_bytes: int = Field(default=16_384, ge=64)
    memory_bytes: int = Field(default=1 << 30, ge=1 << 24)

    @property
    def policy(self) -> CommandPolicy:
        """As the runner takes it."""
        limits = CommandLimits(self.time_s, self.output_bytes, self.memory_bytes)
        return CommandPolicy(self.remote, frozenset(self.programs), limits)
