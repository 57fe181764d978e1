"""How far off the cost model is on measured runs: reading them, scoring, the baselines beside it."""
