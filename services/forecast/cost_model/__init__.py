"""Cost model of training large transformers: step time, memory and traffic of a layout on a machine. Pure.

``shapes`` what is trained, ``layout`` how it is divided, ``machine`` on what; ``kernels``, ``step_time``, ``memory`` the
model; ``efficiency`` its few parameters, ``calibration`` what measured runs say of others; ``search`` the best layouts.
"""

from services.forecast.cost_model.efficiency import Efficiency, fitted
from services.forecast.cost_model.estimate import BAND_PROBABILITY, Band, Estimate, band_of, estimate
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.machine import Machine, machine_of
from services.forecast.cost_model.shapes import ModelShape

__all__ = [
    "BAND_PROBABILITY",
    "Band",
    "Efficiency",
    "Estimate",
    "Machine",
    "ModelShape",
    "TrainingLayout",
    "band_of",
    "estimate",
    "fitted",
    "machine_of",
]
