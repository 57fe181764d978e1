"""Orders of nodes by what is left on them, for whole devices and shares: the rules of fragmentation.py as node scores.

Each value is the rule's score of 0-100 divided by 100; where a rank does not fit it is 0. Sizes are scaled by the greatest
node of the fleet, not by that of the paper's cluster. All read what is free on the node alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from services.scheduler.core import fragmentation as rules
from services.scheduler.core.fragmentation import SCORE_STEPS, Greatest, Scored, ShareDemand, SharedNodes
from services.scheduler.core.scoring.shared import greatest_of, share_demand, shared_nodes
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View


def scaled(scored: Scored) -> Floats:
    """(N) the scores of a rule, 0-1; 0 where the demand does not fit."""
    return np.where(np.isfinite(scored.score), scored.score / SCORE_STEPS, 0.0)


class _RuleScore(ABC):
    name = ""
    dynamic = True
    per_rank = True
    hosted = False

    @abstractmethod
    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        """The rule of fragmentation.py that this score stands for."""

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        asked = share_demand(view.table, demand)
        return scaled(self.rule(shared_nodes(view, rows, hosted=self.hosted), asked, greatest_of(view.table)))


class BestFitScore(_RuleScore):
    """Least left over: 1 less the mean of processors and devices left, in hundredths (`fragmentation.best_fit`)."""

    name = "best_fit"

    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        return rules.best_fit(nodes, demand, greatest)


class WorstFitScore(_RuleScore):
    """Most left over: the mean of processors and devices left, each over that of the greatest node. Spreads the load over
    nodes by absolute room; `least_loaded` does so relative to each node's size."""

    name = "worst_fit"

    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        cpu = (nodes.cpu_free_milli - demand.cpu_milli) / greatest.cpu_milli
        devices = (nodes.total_free_milli - demand.total_milli) / greatest.device_milli
        score = np.where(rules.fits(nodes, demand), (cpu + devices) / 2 * SCORE_STEPS, -np.inf)
        return Scored(score, rules.tightest_device(nodes, demand))


class DotProductScore(_RuleScore):
    """Least alignment of what is free with what is asked, in hundredths (after Tetris, SIGCOMM 2014;
    `fragmentation.dot_product`): fills nodes that have little left."""

    name = "dot_product"

    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        return rules.dot_product(nodes, demand, greatest)


class GpuPackingScore(_RuleScore):
    """Devices in use first, then idle devices of nodes in use, then idle nodes (`fragmentation.gpu_packing`). Demands
    without devices see no difference."""

    name = "gpu_packing"

    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        scored = rules.gpu_packing(nodes, demand)
        # The published values count devices of an idle node: beyond 100 of them they would leave the scale.
        return Scored(np.minimum(scored.score, SCORE_STEPS), scored.device)


class GpuClusteringScore(_RuleScore):
    """Nodes that hold the same kind of demand first (after Gandiva, OSDI 2018; `fragmentation.gpu_clustering`).

    What a node holds is known of units that bear `shared.kind_label`; the others count as no kind.
    """

    name = "gpu_clustering"
    hosted = True

    def rule(self, nodes: SharedNodes, demand: ShareDemand, greatest: Greatest) -> Scored:
        return rules.gpu_clustering(nodes, demand, greatest)


class LeastLoadedScore:
    """The node's free share of processors and, where it has any, of devices (shares of devices count): the mean of both,
    before the placing. 1 is an empty node."""

    name = "least_loaded"
    dynamic = True
    per_rank = True

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        table = view.table
        totals = table.device_totals[rows]
        cpus = view.free_cpus[rows] / np.maximum(table.cpus[rows], 1e-9)
        devices = view.device_milli[rows].sum(axis=1) / np.maximum(totals * rules.WHOLE, 1)
        shares: Floats = np.where(totals > 0, (cpus + devices) / 2, cpus)
        return np.clip(shares, 0.0, 1.0)
