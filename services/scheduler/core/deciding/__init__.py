"""The parts of one scheduling cycle; `decide` is its entry."""
