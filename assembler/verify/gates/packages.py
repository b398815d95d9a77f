"""Which package a tree is or which are installed in it, and what targets that declares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assembler.verify.owners import package_name
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

SELECTOR = "atom-device"
TARGET_SUFFIX = re.compile(r"-(gfx[0-9a-f]+(?:-\d+)*(?:-generic)?)$")
MAX_JSON = 64 << 20


@dataclass(frozen=True, slots=True)
class Package:
    """A package by its name and, when it is a conda package, its build string."""

    name: str
    build: str = ""

    @property
    def target(self) -> str | None:
        """The gfx target that the name ends with, of device packages."""
        found = TARGET_SUFFIX.search(self.name)
        return found.group(1) if found else None


def packages_in(tree: Tree) -> tuple[Package, ...]:
    """Return the package that the tree is, or those that its conda-meta lists; by name.

    A folder without conda-meta has none. Records that are no JSON objects are passed over: other
    gates speak of them.
    """
    if tree.kind == "wheel":
        return (Package(package_name(tree.label)),)
    if tree.kind == "conda":
        index = _read_index(tree)
        name = str(index.get("name") or package_name(tree.label))
        return (Package(name, str(index.get("build") or "")),)
    if tree.prefix is None:
        return ()
    base = f"{tree.prefix}/" if tree.prefix else ""
    packages = []
    for entry in tree.under(f"{base}conda-meta"):
        if entry.kind == "file" and entry.path.endswith(".json"):
            record = _object(tree.read(entry.path, MAX_JSON))
            if record.get("name"):
                packages.append(Package(str(record["name"]), str(record.get("build", ""))))
    return tuple(sorted(packages, key=lambda package: package.name))


def declared_targets(tree: Tree, policy: Policy) -> tuple[tuple[str, ...], str]:
    """Return the targets that a tree must have code for, and by what they are declared."""
    packages = packages_in(tree)
    if tree.kind == "conda" and packages[0].target:
        return (packages[0].target,), f"the name of {packages[0].name}"
    for package in packages:
        if package.name == SELECTOR and package.build.startswith("gfx"):
            return (package.build.partition("_")[0],), f"{SELECTOR} {package.build}"
    return policy.targets, "gfx_target of the recipes' variants"


def _read_index(tree: Tree) -> Mapping[str, Any]:
    if tree.info is None:
        return {}
    try:
        return _object((tree.info / "index.json").read_bytes())
    except OSError:
        return {}


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
