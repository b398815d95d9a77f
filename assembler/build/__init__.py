"""Recipes and verified sources in, reproducible conda packages out."""
