"""The deciders of domains: each gives away the nodes of its domains to shards of the scheduler (core/apart/grants.py)."""
