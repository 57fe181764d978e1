"""Slurm as a domain's own scheduler: what it would be asked, and how its words are read. Nothing here starts a program."""
