"""Why a unit is where it is or waits, and the least change that would flip the decision."""
