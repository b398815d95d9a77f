"""Paths on the command line that name something to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from assembler.errors import ConfigError


class Existing(click.Path):
    """A path on the command line that must be there; ConfigError, not a usage error, if it is not.

    What it holds is for the command to judge.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(path_type=Path)
        self._what = what
        self._remedy = remedy

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.exists():
            raise ConfigError(f"there is no {self._what} {path}", remedy=self._remedy)
        return path


LAYOUT = Existing("file or folder", "name an OCI layout, or leave it out for the profile's image")
LOCK = Existing("lock at", "name a conda-lock.yml or the folder that holds one")
