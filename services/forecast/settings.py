"""Settings of forecast (``MERIDIAN_FORECAST_*``)."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class ForecastSettings(HttpSettings):
    """How demand is sampled and forecast. Lists are JSON in the environment, e.g. ``[600, 3600]``."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_FORECAST_", extra="ignore")

    http_port: int = 4104
    window_s: float = Field(60.0, gt=0)
    # A window is closed this long after its end, so that its events have arrived.
    lateness_s: float = Field(2.0, ge=0)
    horizons_s: tuple[float, ...] = Field((600.0, 3600.0), min_length=1)
    # Longer horizons, forecast from the structure of the jobs alone: a day.
    structure_horizons_s: tuple[float, ...] = (86_400.0,)
    # Jobs that are forecast each by itself, the largest first.
    forecast_jobs: int = Field(200, ge=0)
    # Seasons that are tried when the history holds two of them.
    seasons_s: tuple[float, ...] = (3600.0, 86_400.0, 604_800.0)
    # Windows kept, and looked at: three days of one-minute windows.
    history_windows: int = Field(4320, ge=10)
    # Forecasts that did not change are published again after so many windows.
    repeat_windows: int = Field(5, ge=1)
