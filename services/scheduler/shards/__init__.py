"""The scheduler as one of several shards of tenants, which asks the deciders of domains for nodes (core/apart)."""
