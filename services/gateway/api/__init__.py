"""The REST interface, by subject."""
