"""The process that stands for one machine of a domain: it starts ranks, reads what they print, and beats.

Standard library only and few imports, because a domain starts one such process per emulated machine and a start must
cost milliseconds. Nothing outside this package is imported here; the agent's side speaks the same JSON lines (`wire`).
"""
