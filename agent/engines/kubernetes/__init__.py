"""Kubernetes as the scheduler and the engine of a domain."""
