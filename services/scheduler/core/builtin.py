"""Makes the built-in plugins known, beside the basic ones that filters.py and scores.py register themselves.

Importing it is enough. What resolves names imports it (plugins.py); nothing that it imports may do so.
"""

from __future__ import annotations

from services.scheduler.core import admission, filters, queue, scores
from services.scheduler.core.contracts.contract import ShareDeficitScore
from services.scheduler.core.scoring.affinity import RunsThereFilter, ThroughputScore
from services.scheduler.core.scoring.burst import BurstLastFilter, BurstScore
from services.scheduler.core.scoring.contracts import ShareContractScore
from services.scheduler.core.scoring.data import DataLocalityScore, TransferCostScore, TransferTimeScore
from services.scheduler.core.scoring.energy import AwakeScore, ElectricityScore, EnergyScore
from services.scheduler.core.scoring.gradient import GradientScore
from services.scheduler.core.scoring.interference import InterferenceScore
from services.scheduler.core.scoring.moving import WorthMovingFilter
from services.scheduler.core.scoring.packing import (
    BestFitScore,
    DotProductScore,
    GpuClusteringScore,
    GpuPackingScore,
    LeastLoadedScore,
    WorstFitScore,
)
from services.scheduler.core.scoring.shuffle import RandomScore
from services.scheduler.core.scoring.topology import CompactScore, SplitCostScore
from services.scheduler.core.selection.catalogue import LIMITS, ORDERS
from services.scheduler.core.tenants_objectives import ChebyshevScore

for _score in (
    BestFitScore(),
    WorstFitScore(),
    DotProductScore(),
    GpuPackingScore(),
    GpuClusteringScore(),
    LeastLoadedScore(),
    GradientScore(),
    RandomScore(),
    EnergyScore(),
    AwakeScore(),
    ElectricityScore(),
    TransferCostScore(),
    TransferTimeScore(),
    DataLocalityScore(),
    BurstScore(),
    ThroughputScore(),
    CompactScore(),
    SplitCostScore(),
    InterferenceScore(),
    ShareContractScore(),
    ShareDeficitScore(),
    ChebyshevScore(),
):
    scores.register(_score)

for _filter in (RunsThereFilter(), BurstLastFilter(), WorthMovingFilter()):
    filters.register(_filter)

for _limit in LIMITS:
    admission.register(_limit)

for _order in ORDERS:
    queue.register(_order)
