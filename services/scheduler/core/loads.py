"""What follows from the loads that replicas reported: parts of devices move, then replicas come and go.

The live service and its replay call it after every telling, so that both do the same. On two levels a shard does it, which owns how
many replicas its tenants' services have; parts of devices are its domains' to give, so it says which ones it would like to have.
"""

from __future__ import annotations

from services.scheduler.core import replicas, shares
from services.scheduler.core.book import Draft
from services.scheduler.core.measured import News
from services.scheduler.core.policy import RestartRules


def by_load(draft: Draft, news: News, now_s: float, rules: RestartRules) -> dict[str, int]:
    """Carry out what the book knows of loads, on an empty draft, after ``news`` were learned. Returns the parts of accelerators that
    domains are to be asked for, in thousandths by run; on one level none.

    1. Replicas that may have more or less of their device get it (`shares.follow`).
    2. Services get more or fewer replicas (`replicas.follow`), not more where 1 was enough.
    3. What had to shrink gets back what is free (`shares.give_back`); also without news.
    """
    loads = draft.book.replicas
    if draft.fleet.asks_domains:
        if not news:
            return {}
        wishes, content = shares.wish(draft, loads, now_s)
        replicas.follow(draft, loads, now_s, rules, content)
        return wishes
    if news:
        content = shares.follow(draft, loads, now_s)
        replicas.follow(draft, loads, now_s, rules, content)
    shares.give_back(draft, now_s)
    return {}
