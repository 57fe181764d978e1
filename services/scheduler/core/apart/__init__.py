"""Both levels as parties that are apart: what they say to each other, what a domain grants, what a shard dispatches.

`two_level` decides; this package keeps the decisions of parties right that hear of each other late, start again, or are
replaced in between. A shard (`dispatching`) asks, a domain (`grants`) gives its nodes and answers (`messages`).
"""
