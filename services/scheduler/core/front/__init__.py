"""Several objectives at once: the front of a job set, and the point that a tenant picks."""
