"""Packages in, an indexed channel out that is never seen half-written."""
