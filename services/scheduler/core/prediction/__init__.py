"""Run-time prediction from finished jobs, for backfill, ordering, start times and reservations."""

from services.scheduler.core.prediction.bursts import Bursts
from services.scheduler.core.prediction.features import SHORTEST_S, Features, Prediction
from services.scheduler.core.prediction.predictor import EXPERTS, PredictorSettings, RunTimePredictor
from services.scheduler.core.prediction.service_index import ServiceIndex, gittins_indices

__all__ = [
    "EXPERTS",
    "SHORTEST_S",
    "Bursts",
    "Features",
    "Prediction",
    "PredictorSettings",
    "RunTimePredictor",
    "ServiceIndex",
    "gittins_indices",
]
