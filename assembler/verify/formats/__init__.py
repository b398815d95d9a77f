"""A report in the words of people (text, markdown) and of CI systems (JSON, SARIF, JUnit)."""

from __future__ import annotations

import importlib
from typing import Protocol

from assembler.errors import ConfigError
from assembler.verify.findings import Report

NAMES = ("text", "json", "sarif", "junit", "markdown")


class _Format(Protocol):
    def render(self, report: Report) -> str: ...


def render(report: Report, name: str) -> str:
    """Return the report in the named format, without a final line break."""
    if name not in NAMES:
        raise ConfigError(f"there is no format {name!r}", remedy=f"choose {', '.join(NAMES)}")
    module: _Format = importlib.import_module(f"assembler.verify.formats.{name}")
    return module.render(report)
