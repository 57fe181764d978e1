"""All SQL of the gateway, by subject."""
