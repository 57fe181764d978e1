"""Engines start and stop runs on the machines of a domain: local processes here; batch systems by the same interface."""
