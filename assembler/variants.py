"""Variant axes: what recipes are rendered for, read from variant files and narrowed by a choice.

A variant file is rattler-build's: ``axis: [value, …]``, and ``zip_keys`` with groups of axes whose
values belong together row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from assembler.errors import ConfigError
from assembler.targets import check_targets, family_of

GFX_AXIS = "gfx_target"
# Derived from it: the families of the targets, for packages of what a family's members share.
FAMILY_AXIS = "gfx_family"
ZIP_KEYS = "zip_keys"

Variants = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Axes:
    """Axes with their values, and the groups of axes that go row by row."""

    values: Variants
    zip_keys: tuple[tuple[str, ...], ...] = field(default=())

    def choose(self, chosen: Mapping[str, str]) -> Axes:
        """Return the axes with only the chosen value of each axis that is named.

        Axes zipped with it keep the same row. ConfigError when an axis has no such value.
        """
        values = dict(self.values)
        for axis, value in chosen.items():
            have = values.get(axis, ())
            if value not in have:
                raise ConfigError(
                    f"{axis} cannot be {value!r}",
                    remedy=f"choose among {', '.join(have)}"
                    if have
                    else f"no variant file has an axis {axis!r}",
                )
            rows = [row for row, one in enumerate(have) if one == value]
            for key in next((group for group in self.zip_keys if axis in group), (axis,)):
                values[key] = tuple(values[key][row] for row in rows)
        return Axes(values, self.zip_keys)

    def override(self, more: Mapping[str, Iterable[str]]) -> Axes:
        """Return the axes with other values for some; they leave their zip groups if need be."""
        values = dict(self.values) | {key: tuple(one) for key, one in more.items()}
        groups = []
        for group in self.zip_keys:
            lengths = [len(values[key]) for key in group]
            groups.append(
                tuple(
                    key
                    for key, length in zip(group, lengths, strict=True)
                    if length == max(lengths) and length > 1
                )
            )
        return Axes(values, tuple(group for group in groups if len(group) > 1))

    @property
    def gfx_targets(self) -> tuple[str, ...]:
        """The GPU targets, checked; ConfigError when no variant file lists any."""
        if GFX_AXIS not in self.values:
            raise ConfigError(
                f"no variant file of the profile has {GFX_AXIS}",
                remedy="add the list of GPU targets to recipes/variants.yaml",
            )
        return check_targets(self.values[GFX_AXIS])

    @property
    def gfx_families(self) -> tuple[str, ...]:
        """The families of the GPU targets, each once."""
        return tuple(dict.fromkeys(map(family_of, self.gfx_targets)))


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(f"there is no variant file {file}", remedy="correct stack.toml") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{file} is not valid YAML", remedy="correct it") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file} has no axes", remedy="write NAME: [value, …]")
    return data


def read_axes(files: Iterable[Path]) -> Axes:
    """Read variant files, in order; a later file's values of an axis replace an earlier one's."""
    values: dict[str, tuple[str, ...]] = {}
    groups: list[tuple[str, ...]] = []
    for file in files:
        for key, items in _read(file).items():
            if not isinstance(items, list) or not items:
                raise ConfigError(
                    f"{file}: {key} is not a list of values", remedy=f"write {key}: [value, …]"
                )
            if key != ZIP_KEYS:
                values[key] = tuple(str(item) for item in items)
            elif all(isinstance(group, list) for group in items):
                groups += [tuple(str(item) for item in group) for group in items]
            else:
                raise ConfigError(
                    f"{file}: {ZIP_KEYS} is not a list of lists", remedy="write a list for a group"
                )
    for group in groups:
        lengths = {key: len(values.get(key, ())) for key in group}
        if len(set(lengths.values())) != 1:
            words = ", ".join(f"{key} {length}" for key, length in lengths.items())
            raise ConfigError(
                f"zipped axes have different numbers of values ({words})",
                remedy="give each of them one value a row",
            )
    return Axes(values, tuple(groups))
