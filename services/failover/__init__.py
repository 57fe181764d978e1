"""Failover: hears who is alive, declares who is not, and plans the recovery of what was lost."""
