"""Shares that domains were promised: those that got less than planned come first."""

from __future__ import annotations

import numpy as np

from services.scheduler.core.scoring.facts import by_domain
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View


class ShareContractScore:
    """``(1 + gap) / 2`` by the fact ``share_gap`` (D): planned less given share, -1 to 1, so a domain below its plan is above
    one half. Unknown (NaN, or no such fact) counts as no gap."""

    name = "share_contract"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        gap = by_domain(view, "share_gap")
        if gap is None:
            return np.full(len(view.table.domain_ids), 0.5)
        return np.clip((1.0 + np.nan_to_num(gap)) / 2.0, 0.0, 1.0)
