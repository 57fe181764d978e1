"""Discrete-event simulation of the network: the real decisions in virtual time."""
