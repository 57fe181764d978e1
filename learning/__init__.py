"""Trains and exports the models that services serve. torch lives here alone; no service imports this package."""
