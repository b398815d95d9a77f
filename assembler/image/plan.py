"""The layer plan: which package goes into which layer. Pure.

Layers follow bytes and change rate. A package of BIG bytes or more gets a layer of its own while
the budget lasts; smaller ones are grouped by change class, libraries further by a hash of their
name, so that one moved package rewrites one group. Order: rarely changed first, the application
last. Every package is in exactly one layer, whatever the budget.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from itertools import pairwise

from assembler.errors import ConfigError

BIG = 4 << 20  # bytes of the compressed package
DEFAULT_BUDGET = 20
# Docker's classic store stops at 125 layers; children of this image need some of them.
MOST_LAYERS = 100
LIBRARY_GROUPS = 4
_DEVICE = re.compile(r"-device-(gfx[0-9a-f]+)$")


@dataclass(frozen=True)
class ChangeClass:
    """How often packages change; ``rank`` counts up from the bottom of the image."""

    name: str
    rank: int
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class PlannedPackage:
    """What the plan knows of a package: ``size`` in bytes, ``depth`` below it of dependencies."""

    name: str
    size: int
    depth: int = 0


@dataclass(frozen=True)
class LayerPlan:
    """A layer: packages in the order they are written; ``size`` their bytes."""

    name: str
    packages: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class _Group:
    rank: int
    name: str
    members: tuple[PlannedPackage, ...]

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Class first; in a class lone packages by depth, then groups."""
        lone = len(self.members) == 1 and self.members[0].name == self.name
        return self.rank, not lone, self.members[0].depth if lone else 0, self.name

    def plan(self) -> LayerPlan:
        members = sorted(self.members, key=lambda member: (member.depth, member.name))
        return LayerPlan(self.name, tuple(member.name for member in members), self.size)


def classes_source() -> bytes:
    """Return change_classes.toml."""
    return files("assembler.image").joinpath("change_classes.toml").read_bytes()


@cache
def read_classes() -> tuple[ChangeClass, ...]:
    """Return the change classes that come with the assembler."""
    text = classes_source().decode()
    return tuple(
        ChangeClass(item["name"], rank, tuple(item["packages"]))
        for rank, item in enumerate(tomllib.loads(text)["class"])
    )


def class_of(package: str) -> ChangeClass:
    """Return a package's change class."""
    classes = read_classes()
    for change in classes:
        if any(fnmatchcase(package, pattern) for pattern in change.patterns):
            return change
    return next(change for change in classes if change.name == "library")


def depths(depends: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return how long the longest chain of dependencies below each package is.

    ``depends`` maps names to match specs; names outside the mapping do not count, cycles are cut.
    """
    needs = {
        name: sorted({spec.split()[0].split("::")[-1] for spec in specs} & depends.keys())
        for name, specs in depends.items()
    }
    found: dict[str, int] = {}
    for start in sorted(needs):
        stack, open_names = [(start, 0)], {start}
        while stack:
            name, position = stack.pop()
            waiting = [need for need in needs[name][position:] if need not in found]
            waiting = [need for need in waiting if need not in open_names]
            if name in found:
                continue
            if waiting:
                stack.append((name, position))
                stack.append((waiting[0], 0))
                open_names.add(waiting[0])
            else:
                found[name] = max((found[need] + 1 for need in needs[name] if need in found),
                                  default=0)  # fmt: skip
                open_names.discard(name)
    return found


def _group_name(package: PlannedPackage, change: ChangeClass, groups: int) -> str:
    if change.name == "device" and (match := _DEVICE.search(package.name)):
        return f"device-{match[1]}"
    if change.name == "library" and groups > 1:
        bucket = hashlib.sha256(package.name.encode()).digest()[0] % groups
        return f"libraries-{bucket + 1}"
    # A group never has the name of a package that may stand alone.
    return {"library": "libraries", "python": "python-tools"}.get(change.name, change.name)


def _groups(packages: Iterable[PlannedPackage], library_groups: int) -> list[_Group]:
    found: dict[tuple[int, str], list[PlannedPackage]] = {}
    for package in packages:
        change = class_of(package.name)
        key = change.rank, _group_name(package, change, library_groups)
        found.setdefault(key, []).append(package)
    return [_Group(rank, name, tuple(members)) for (rank, name), members in found.items()]


def _merged(groups: Sequence[_Group], budget: int) -> list[_Group]:
    """Join neighbours, the smallest pair first, until the budget holds."""
    ordered = sorted(groups, key=lambda group: group.order)
    while len(ordered) > budget:
        sizes = [one.size + two.size for one, two in pairwise(ordered)]
        at = sizes.index(min(sizes))
        one, two = ordered[at : at + 2]
        ordered[at : at + 2] = [
            _Group(two.rank, f"{one.name}+{two.name}", one.members + two.members)
        ]
    return ordered


def plan_layers(
    packages: Sequence[PlannedPackage], budget: int = DEFAULT_BUDGET
) -> tuple[LayerPlan, ...]:
    """Return the layers for some packages, bottom first, at most ``budget`` of them.

    Raises ConfigError for a budget outside 1 to MOST_LAYERS.
    """
    if not 1 <= budget <= MOST_LAYERS:
        raise ConfigError(
            f"a budget of {budget} layers", remedy=f"choose one from 1 to {MOST_LAYERS}"
        )
    big = [package for package in packages if package.size >= BIG]
    # Size counts by powers of two: a package that grows a little does not push another out.
    big.sort(key=lambda package: (-package.size.bit_length(), package.name))
    groups: list[_Group] = []
    for library_groups in (LIBRARY_GROUPS, 1):
        for lone in range(min(len(big), budget), -1, -1):
            names = {package.name for package in big[:lone]}
            rest = (package for package in packages if package.name not in names)
            groups = _groups(rest, library_groups)
            groups += [_Group(class_of(one.name).rank, one.name, (one,)) for one in big[:lone]]
            if len(groups) <= budget:
                break
        if lone == len(big) and len(groups) <= budget:
            break
    return tuple(group.plan() for group in _merged(groups, budget))
