"""The `meridian` command."""
