"""Which layers a pipeline stage holds, where they divide and where they do not.

Stated (`TrainingLayout.stage_layers`) or derived: embedding, output layer and layers that predict further tokens fill a place
each where the layers divide only so (Llama 3.1 405B, arXiv:2407.21783 section 3.3.2; DeepSeek-V3, arXiv:2412.19437 section 3.2);
otherwise stages have as many layers as the fullest one or one less, the last stage and then the first less before others, as
`num_layers_in_last_pipeline_stage` and `pipeline_model_parallel_layout` of Megatron-Core put them (Kimi K2: 61 layers on four
stages).
"""

from __future__ import annotations

import itertools
import math

from services.forecast.cost_model.layout import TrainingLayout, places_beside
from services.forecast.cost_model.shapes import ModelShape


def layers_of_stages(shape: ModelShape, layout: TrainingLayout) -> tuple[int, ...]:
    """Layers of each stage of a possible layout, first to last."""
    if layout.stage_layers:
        return layout.stage_layers
    last = layout.pp - 1
    beside = places_beside(shape, layout.pp * layout.vpp)
    fullest = math.ceil((shape.layers + (beside or 0)) / layout.pp)
    # The output layer is on the last stage, the embedding on the first, layers that predict on the last.
    ends = (last, 0, *([last] * shape.predicting_layers if beside is not None else ()))
    return _with_fewer([fullest] * layout.pp, fullest * layout.pp - shape.layers, (*ends, *range(last - 1, 0, -1)))


def _with_fewer(layers: list[int], fewer: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """``layers`` with so many less, taken one by one in ``order`` over all stages, from none that has none."""
    places = itertools.cycle(order)
    while fewer > 0:
        stage = next(places)
        if layers[stage] > 0:
            layers[stage] -= 1
            fewer -= 1
    return tuple(layers)


def is_even(stages: tuple[int, ...]) -> bool:
    """Whether all stages hold as many layers."""
    return min(stages) == max(stages)
