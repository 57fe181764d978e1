"""Forecast: how much compute will be asked for, and what a training job needs."""
