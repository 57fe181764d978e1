"""The agent as the decider of a domain that has a scheduler of its own (scheduler.proto)."""
