"""Whole-cluster planners: each looks at all running and waiting jobs and gives a target allocation, as arrays.

They are pure functions and keep nothing between rounds; what remembers, and what turns a target into placements, is the
caller. They serve as baselines and as building blocks of policies. This is the only place that may use scipy's solvers.
"""
