"""The thinking of the scheduler: no I/O, no clock, no randomness. Live service, what-if, replay and simulator share it."""
