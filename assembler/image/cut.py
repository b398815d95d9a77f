"""Layers cut to a size: what registries limit, and what only happens when it is asked for. Pure.

A size counts a layer's bytes before compression, so that it holds for every compressor. A planned
layer that is too big is cut between packages, a package that is too big between its files: a hard
link stays with its target, and what an install adds (scripts, bytecode, the record) comes last. A
file that alone is too big gets a layer of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from assembler.digest import digest_of
from assembler.errors import ConfigError
from assembler.image.entry import BLOCK, Entry, header, padding, parents
from assembler.image.plan import LayerPlan, PlannedPackage, plan_layers

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
# The end of the archive, conda-meta/history and the user's home.
ROOM = 8 * BLOCK
_SHORT = 100  # bytes of a path that surely fits into one block


@dataclass(frozen=True)
class Item:
    """A file of a package: where it goes, its bytes in a layer, and the file it is a hard link to.

    ``target`` is the name of an item before it, or None.
    """

    name: str
    path: bytes
    weight: int
    target: str | None = None


@dataclass(frozen=True)
class Part:
    """Some of a package's files by their names in it; the last part also has what is added."""

    members: frozenset[str]
    last: bool
    weight: int
    oversize: bool = False

    @property
    def key(self) -> str:
        """What a segment of this part depends on."""
        return digest_of([sorted(self.members), self.last])


@dataclass(frozen=True)
class Slice:
    """A layer after cutting: packages in their order; ``part`` when it is some of one package."""

    name: str
    packages: tuple[str, ...]
    size: int
    part: Part | None = None


@dataclass
class _Open:
    """A part under way: its names, its bytes, and the directories that it has already."""

    names: set[str] = field(default_factory=set)
    weight: int = ROOM
    folders: set[bytes] = field(default_factory=set)

    def cost(self, paths: Iterable[bytes], weight: int) -> int:
        new = {folder for path in paths for folder in parents(path)} - self.folders
        return weight + sum(map(header_weight, new))

    def take(self, names: Iterable[str], paths: Sequence[bytes], weight: int) -> None:
        self.weight += self.cost(paths, weight)
        self.names.update(names)
        self.folders.update(folder for path in paths for folder in parents(path))


def parse_size(text: str) -> int:
    """Return the bytes of ``5GB``, ``500MiB`` or ``1000``; ConfigError for anything else.

    >>> parse_size("1.5 GB")
    1500000000
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    if size <= 0:
        raise ConfigError(f"{text!r} is not a size", remedy="write one like 5GB or 500MiB")
    return size


def header_weight(path: bytes) -> int:
    """Return the bytes that a directory takes in a layer."""
    return BLOCK if len(path) < _SHORT else len(header(Entry.directory(path, 0)))


def file_weight(path: bytes, size: int) -> int:
    """Return the bytes that a file of ``size`` bytes takes in a layer."""
    return len(header(Entry.file(path, size, 0))) + size + len(padding(size))


def cut_package(
    items: Sequence[Item], added: Sequence[bytes], added_weight: int, limit: int
) -> tuple[Part, ...]:
    """Return the parts of a package whose files come in this order, each within the limit.

    ``added`` are the paths of what an install adds, ``added_weight`` its bytes. A part over the
    limit holds one file (with its hard links) or the additions alone.
    """
    links: dict[str, list[Item]] = {}
    for item in items:
        if item.target is not None:
            links.setdefault(item.target, []).append(item)
    parts: list[Part] = []
    current = _Open()

    def close(*, last: bool = False) -> None:
        nonlocal current
        if current.names or last:
            oversize = current.weight > limit
            parts.append(Part(frozenset(current.names), last, current.weight, oversize))
        current = _Open()

    for item in items:
        if item.target is not None:
            continue
        group = [item, *links.get(item.name, ())]
        paths = [one.path for one in group]
        weight = sum(one.weight for one in group)
        if current.names and current.weight + current.cost(paths, weight) > limit:
            close()
        current.take((one.name for one in group), paths, weight)
    if current.names and current.weight + current.cost(added, added_weight) > limit:
        close()
    current.take((), added, added_weight)
    close(last=True)
    return tuple(parts)


def plan_slices(
    packages: Sequence[PlannedPackage],
    budget: int,
    limit: int,
    weights: Mapping[str, int],
    parts: Callable[[str], tuple[Part, ...]],
) -> tuple[Slice, ...]:
    """Return at most ``budget`` layers, each within the limit unless one file is not.

    ``weights`` are the packages' uncompressed bytes; ``parts`` cuts one that is over the limit.
    Raises ConfigError when so many layers are not enough.
    """
    fewest = 0
    for planned in range(budget, 0, -1):
        layers = plan_layers(packages, planned)
        slices = [piece for layer in layers for piece in _slices(layer, limit, weights, parts)]
        if len(slices) <= budget:
            return tuple(slices)
        fewest = min(fewest or len(slices), len(slices))
    raise ConfigError(
        f"with at most {limit} bytes each there are {fewest} layers, but only {budget} may be",
        remedy="raise --max-layer-size or --max-layers",
    )


def _slices(
    layer: LayerPlan,
    limit: int,
    weights: Mapping[str, int],
    parts: Callable[[str], tuple[Part, ...]],
) -> list[Slice]:
    """Cut one planned layer; one that fits stays as it is."""
    total = sum(weights[name] for name in layer.packages)
    if total <= limit:
        return [Slice(layer.name, layer.packages, layer.size)]
    runs: list[tuple[tuple[str, ...], int, Part | None]] = []
    group: tuple[str, ...] = ()
    weight = 0
    for name in layer.packages:
        pieces = parts(name) if weights[name] > limit else ()
        if group and (len(pieces) > 1 or weight + weights[name] > limit):
            runs.append((group, weight, None))
            group, weight = (), 0
        if len(pieces) > 1:
            runs.extend(((name,), part.weight, part) for part in pieces)
        else:
            group, weight = (*group, name), weight + weights[name]
    if group:
        runs.append((group, weight, None))
    if len(runs) == 1:
        return [Slice(layer.name, layer.packages, layer.size)]
    whole = sum(weight for _, weight, _ in runs)
    return [
        Slice(f"{layer.name} {number} of {len(runs)}", names, layer.size * weight // whole, part)
        for number, (names, weight, part) in enumerate(runs, 1)
    ]
