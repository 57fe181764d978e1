"""The built-in scores and filters beyond the basic ones, one topic per file; builtin.py registers them."""
