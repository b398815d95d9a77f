"""Measurements of the real cpu stack: ratios of two sides on the same input in one run."""
