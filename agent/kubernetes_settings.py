"""What the agent's file says of a domain whose nodes a Kubernetes gives away (docs/integrating-a-cloud.md). Times in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

LEAST_LEASE_S = 20.0
"""A lease is kept by the Job controller, which counts in whole seconds and acts some of them late."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SharedVolume(_Section):
    """A file system that agent and pods see under the same path: of a claim, or a folder of the nodes."""

    path: Annotated[str, StringConstraints(pattern=r"^/[^:]*$")]
    claim: str = ""
    host: bool = False

    @model_validator(mode="after")
    def _has_one_source(self) -> SharedVolume:
        if bool(self.claim) == self.host:
            raise ValueError("either claim (a PersistentVolumeClaim) or host: true (a folder of the nodes) is needed")
        return self


class KubernetesScheduling(_Section):
    """Kubernetes chooses the nodes and the programs run in pods of its Jobs; every node's ``aliases.kubernetes`` is Kubernetes' name of
    it (and its label kubernetes.io/hostname), where that is another than its ``node_id``."""

    kind: Literal["kubernetes"]
    # Where the API server is: the first that is given; none: the service account of the pod in which the agent runs.
    kubeconfig: Path | None = None
    context: str = ""
    server: str = ""
    token_path: Path | None = None
    ca_path: Path | None = None
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] = "default"
    # The image of jobs that name none; with /bin/sh in it.
    image: Annotated[str, StringConstraints(pattern=r"^\S+$")]
    # Beginnings of the images that jobs may name (MERIDIAN_IMAGE in their environment).
    job_images: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    # Extended resources by accelerator model, where they are not those of the vendor's device plugin.
    resources: dict[str, str] = {}
    # Labels of nodes by accelerator model, beside the nodes that declare it.
    model_labels: dict[str, dict[str, str]] = {}
    # Extended resources by the names of user-defined resources.
    counted: dict[str, str] = {}
    # Labels of nodes by the levels of topologies that jobs name.
    topology_keys: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str | int], ...] = ()
    # A LocalQueue of Kueue (or, with gang: volcano, a Queue of Volcano).
    queue: str = ""
    gang: Literal["", "volcano", "coscheduling"] = ""
    scheduler_name: str = ""
    priority_class: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    run_as_user: int | None = Field(None, ge=0, le=2**31 - 1)
    # Pods use the network of their node; without it runs over several domains are refused.
    host_network: bool = False
    # Without one, checkpoints are gone with their pods, and are not reported.
    volume: SharedVolume | None = None
    # False: pods of other namespaces are not looked at (no right to), so what others use is not known.
    whole_cluster: bool = True
    # A pod leaves a node that is not heard after this.
    node_loss_s: int = Field(30, ge=0, le=86_400)
    # How long is waited for nodes before the unit is refused for now; shards wait 5 s for an answer.
    answer_s: float = Field(3.0, gt=0, le=4)
    # So many units that were refused for now keep their Job.
    most_queued: int = Field(0, ge=0)
    answers_at_once: int = Field(4, ge=1, le=64)
    claim_s: float = Field(30.0, gt=0)
    # A Job without a run ends by itself when the agent has been gone for so long.
    abandon_s: float = Field(120.0, ge=10)
    # Containers begin within it, with the pull of their image.
    start_timeout_s: float = Field(600.0, gt=0)
    image_patience_s: float = Field(30.0, ge=0)
    # A pod on a node that is not heard counts as gone so long after it was told to end.
    lost_patience_s: float = Field(60.0, ge=0)
    poll_s: float = Field(2.0, gt=0, le=60)
