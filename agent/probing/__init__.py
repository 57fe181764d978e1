"""Active probes between agents: round trip and loss over UDP, bandwidth by a small bounded transfer over TCP."""
