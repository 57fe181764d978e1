"""The demand and the cost of a planned set of jobs over time, with bands, before any of them is submitted."""
