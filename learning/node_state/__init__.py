"""The state of nodes, recognised from a window of their metrics and those of their neighbours."""
