"""Fixtures of this folder; what they are made of is in conftest_sources.py, which tests import."""

from __future__ import annotations

from conftest_sources import index, pip_environment, project, server

__all__ = ["index", "pip_environment", "project", "server"]
