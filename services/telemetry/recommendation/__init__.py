"""From what somebody wants to do to what they should rent: profile, graded requirement, ranked offers with reasons."""
