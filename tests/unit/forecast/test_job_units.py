from __future__ import annotations

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    JobPlaced,
    JobSpec,
    ModelDescription,
    PlacedRank,
    PlacementConstraints,
    WorkflowTask,
)
from services.forecast.cost_model.layout import Recompute
from services.forecast.events import placement_of
from services.forecast.job_units import layout_of, model_of, units_of
from services.forecast.ledger import Amount, Unit

EACH = Resources(cpus=2, accelerators=4)


def test_kinds_of_jobs() -> None:
    def asked(**fields: object) -> list[Amount]:
        return [unit.asked for unit in units_of(JobSpec(resources=EACH, **fields))]  # type: ignore[arg-type]

    assert asked(kind=job_pb2.JOB_KIND_TASK) == [Amount(4, 2)]
    assert asked(kind=job_pb2.JOB_KIND_GANG, ranks=3) == [Amount(12, 6)]
    assert asked(kind=job_pb2.JOB_KIND_ARRAY, array_size=2) == [Amount(4, 2)] * 2
    assert asked(kind=job_pb2.JOB_KIND_SERVICE, replicas=3) == [Amount(4, 2)] * 3


def test_ranks_that_share_accelerators_ask_for_and_hold_their_parts() -> None:
    part = Resources(cpus=1, accelerators=1, accelerator_milli=250)
    service = JobSpec(kind=job_pb2.JOB_KIND_SERVICE, resources=part, replicas=2)
    assert [unit.asked for unit in units_of(service)] == [Amount(0.25, 1)] * 2
    placed = JobPlaced(
        job_id="j",
        ranks=[
            PlacedRank(rank=0, domain_id="north", node_id="n1", accelerator_indices=[3], accelerator_milli=250),
            PlacedRank(rank=1, domain_id="north", node_id="n1", accelerator_indices=[3], accelerator_milli=500),
            PlacedRank(rank=2, domain_id="south", node_id="n2", accelerator_indices=[0, 1]),
        ],
    )
    given = placement_of(placed, 0.0, {"n1": "a100"})
    assert given.held == {"north": 0.75, "south": 2.0}
    assert given.chips == {"north": {"a100": 0.75}}
    assert given.ranks == {"north": 2, "south": 1}


def test_workflow_tasks_have_their_own_resources_and_dependencies() -> None:
    spec = JobSpec(
        kind=job_pb2.JOB_KIND_WORKFLOW,
        resources=EACH,
        tasks=[
            WorkflowTask(name="a"),
            WorkflowTask(name="b", depends_on=["a"], ranks=2, resources=Resources(accelerators=1)),
        ],
    )
    first, second = units_of(spec)
    assert (first.asked, first.depends_on) == (Amount(4, 2), ())
    assert (second.asked, second.depends_on) == (Amount(2, 0), (0,))


def test_only_model_and_limit() -> None:
    def unit(*models: str, accelerators: int = 4, limit_s: float = 0.0) -> Unit:
        spec = JobSpec(resources=Resources(accelerators=accelerators, accelerator_types=models), max_run_time_s=limit_s)
        return units_of(spec)[0]

    assert [unit(*models).only_chip for models in ((), ("a",), ("a", "a"), ("a", "b"))] == ["", "a", "a", ""]
    assert unit("a", accelerators=0).only_chip == ""
    assert unit(limit_s=600.0).limit_s == 600.0


def test_the_only_model_is_that_of_the_network_which_a_type_means() -> None:
    def only(*types: str, accelerators: int = 1) -> str:
        spec = JobSpec(resources=Resources(accelerators=accelerators, accelerator_types=types))
        return units_of(spec, ["NVIDIA A100-SXM4-80GB", "H100-SXM5-80GB", "H100-PCIe-80GB"])[0].only_chip

    assert only("a100") == only("A100-80GB", "NVIDIA-A100") == only("A100", "B200") == "NVIDIA A100-SXM4-80GB"
    assert only("H100") == only("A100", "H100 SXM5") == only() == only("a100", accelerators=0) == ""
    assert only("H100-PCIe") == "H100-PCIe-80GB"
    # Of what the network does not have, what the job says.
    assert only("B200") == "B200"


def test_only_domain() -> None:
    def only(*domains: str, excluded: tuple[str, ...] = ()) -> str:
        placement = PlacementConstraints(domains=domains, exclude_domains=excluded)
        return units_of(JobSpec(placement=placement))[0].only_domain

    assert only("north") == "north"
    assert only("north", "south") == only() == ""
    assert only("north", "south", excluded=("south",)) == "north"


def test_model_and_layout() -> None:
    spec = JobSpec(
        ranks=8,
        resources=EACH,
        model=ModelDescription(
            layers=96,
            hidden=12288,
            heads=96,
            sequence=2048,
            tensor_parallel=8,
            global_batch=64,
            recompute=True,
            steps=5,
        ),
    )
    layout = layout_of(spec)
    assert model_of(spec).layers == 96
    # 32 accelerators over 8 x 1.
    assert (layout.data_parallel, layout.recompute, layout.precision) == (4, Recompute.FULL, "bf16")
