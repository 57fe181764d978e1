"""Planners of the literature, and ours, as plugins of the core: a cluster into the arrays of `services.scheduler.planners`, the plan back
into targets.

The only part of the core that calls solvers, through modules of `services.scheduler.planners`; so nothing else in the core
imports it. A program that wants these planners calls `catalogue.register_all` (the core itself stays without scipy). What is kept
between rounds is the cluster's (`service.py`).
"""
