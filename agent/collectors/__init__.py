"""Collectors take readings of machines and accelerators: from the host, from exporters, from declarations."""
