"""Plugins that say which unit goes next, which may not go now, and which must give way: the pure models of quotas, fairness,
multi-factor priority and service levels, made criteria of the scheduling cycle. Registered by builtin.py and preemption.py."""
