"""What conda-forge calls a PyPI distribution."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def _names() -> Mapping[str, str]:
    text = files("assembler.sources").joinpath("conda_names.toml").read_text(encoding="utf-8")
    names: dict[str, str] = tomllib.loads(text)["names"]
    return names


def normal(distribution: str) -> str:
    """Return a distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def conda_name(distribution: str) -> str:
    """Return the conda package of a PyPI distribution, in whatever spelling that is given.

    From conda_names.toml; a distribution that is not there keeps its normalised name.
    """
    name = normal(distribution)
    return _names().get(name, name)
