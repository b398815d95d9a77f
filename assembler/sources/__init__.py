"""Pinned artefacts in, verified files out: a content-addressed store."""
