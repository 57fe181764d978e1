"""A small network for the demand of the next 10 minutes and hour, against what the forecast service does without one."""
