"""Settings about energy: ours places so that nodes can sleep, and where electricity is clean and cheap; the baselines do not look.

The baselines exist with and without sleeping nodes, and so does our policy without the scores of energy: what sleeping saves,
what the order of jobs does and what placing saves can be told apart.
"""

from __future__ import annotations

from dataclasses import replace

from simulation.policies_plain import PLAIN
from simulation.setting import Setting, named, with_policy

SLEEP_AFTER_S = 600.0
"""Idle nodes sleep after ten minutes: some times what waking takes (1 to 3 minutes in the shipped networks)."""

SCORES = (("awake", 1.0), ("carbon", 1.0), ("electricity", 0.5), ("energy", 1.0), ("pack", 0.25))


def sleeping(setting: Setting, name: str, about: str) -> Setting:
    """The setting with nodes that sleep when they are idle."""
    policy = replace(setting.policy, name=name)
    return replace(setting, name=name, policy=policy, sleep_after_s=SLEEP_AFTER_S, about=about)


ENERGY = named(
    (
        *(
            sleeping(base, f"{base.name}-sleeping", f"{base.about}; idle nodes sleep")
            for base in (PLAIN["first-fit"], PLAIN["least-loaded"], PLAIN["meridian"])
        ),
        with_policy(
            sleeping(
                replace(PLAIN["meridian"], suits=None),
                "meridian-energy",
                "the order of meridian; where electricity is clean now and nodes are awake; idle nodes sleep",
            ),
            scores=SCORES,
        ),
    )
)
