"""Measurements of this program: speed, memory, equality of its paths, load. Run from a checkout."""
