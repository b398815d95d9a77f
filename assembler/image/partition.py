"""A lock's layers: the plan, and packages looked into where layers are to be cut to a size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from assembler.image.condafile import PathEntry, members, plain_name
from assembler.image.cut import (
    ROOM,
    Item,
    Part,
    Slice,
    cut_package,
    file_weight,
    header_weight,
    plan_slices,
)
from assembler.image.entry import BLOCK, Entry, header, parents
from assembler.image.plan import plan_layers
from assembler.image.request import Options, planned_packages
from assembler.image.segment import SegmentSpec
from assembler.lock.model import Lock

# What is not known before it is made, from above: a module's bytecode, a line of the record.
_BYTECODE = 3
_RECORD_LINE = 512


def plan_lock(
    lock: Lock, specs: Mapping[str, SegmentSpec], budget: int, options: Options
) -> tuple[Slice, ...]:
    """Return the layers of a lock's packages, bottom first, without those of the base.

    Only packages that are too big for one layer are read. Raises ConfigError when the size asked
    for needs more layers than there may be.
    """
    packages = planned_packages(lock)
    limit = options.max_layer_size
    if limit is None:
        layers = plan_layers(packages, budget)
        return tuple(Slice(layer.name, layer.packages, layer.size) for layer in layers)
    cuts: dict[str, tuple[Part, ...]] = {}

    def parts(name: str) -> tuple[Part, ...]:
        if name not in cuts:
            added, weight = _additions(specs[name])
            cuts[name] = cut_package(_items(specs[name]), added, weight, limit)
        return cuts[name]

    weights = {name: weight_of(spec) for name, spec in specs.items()}
    return plan_slices(packages, budget, limit, weights, parts)


def placed(spec: SegmentSpec) -> Iterable[str]:
    """Yield every path below the prefix that a segment brings, bytecode included."""
    placement = spec.placement
    if spec.part is None:
        yield from placement.installed()
    else:
        yield from (place for name, (place, _) in placement.places.items() if spec.holds(name))
        if spec.completes:
            yield from (*placement.scripts, placement.record)
    if placement.python is not None and spec.completes:
        yield from map(placement.python.bytecode, placement.sources)


def weight_of(spec: SegmentSpec) -> int:
    """Return the most bytes that a package takes in a layer before compression."""
    paths = [(spec.path(place), entry) for place, entry in spec.placement.places.values()]
    added, weight = _additions(spec)
    folders = {
        folder for path in (*(path for path, _ in paths), *added) for folder in parents(path)
    }
    return (
        ROOM
        + sum(file_weight(path, entry.size or 0) for path, entry in paths)
        + sum(map(header_weight, folders))
        + weight
    )


def _additions(spec: SegmentSpec) -> tuple[list[bytes], int]:
    """Return the paths of what an install adds, and the most bytes of it."""
    placement = spec.placement
    added = [*placement.scripts, placement.record]
    sizes = [4096 for _ in placement.scripts]
    sizes.append(4096 + _RECORD_LINE * len(placement.places) + _longest(spec))
    if placement.python is not None:
        for place, entry in placement.places.values():
            if place in placement.sources:
                added.append(placement.python.bytecode(place))
                sizes.append(_BYTECODE * (entry.size or 0) + 2 * BLOCK)
    added += [place for place, entry in placement.places.values() if entry.path_type == "directory"]
    paths = [spec.path(place) for place in added]
    sizes += [0] * (len(paths) - len(sizes))
    return paths, sum(file_weight(path, size) for path, size in zip(paths, sizes, strict=True))


def _longest(spec: SegmentSpec) -> int:
    return 2 * sum(len(place) for place, _ in spec.placement.places.values())


def _items(spec: SegmentSpec) -> list[Item]:
    """Read a package's entries and return those that are installed, in its own order."""
    places = spec.placement.places
    plain: dict[str, PathEntry] = {}
    items = []
    for member in members(spec.package):
        if member.name not in places or member.info.isdir():
            continue
        place, entry = places[member.name]
        path = spec.path(place)
        target = plain_name(member.info.linkname) if member.info.islnk() else None
        other = plain.get(target) if target is not None else None
        linked = other is not None and _alike(spec, place, entry, other)
        if member.info.isreg():
            plain[member.name] = entry
            weight = file_weight(path, member.info.size)
        elif member.info.issym() or linked:
            to = os.fsencode(member.info.linkname)
            # A hard link names its target below the image's root.
            weight = len(header(Entry.symlink(path, to if not linked else spec.root + to, 0)))
        else:
            weight = file_weight(path, entry.size or 0)
        items.append(Item(member.name, path, weight, target if linked else None))
    return items


def _alike(spec: SegmentSpec, place: str, entry: PathEntry, other: PathEntry) -> bool:
    """Tell whether a hard link stays one; see SegmentStream."""
    python = spec.placement.python
    bytecode = python is not None and place.endswith(".pyc")
    same = (other.placeholder, other.file_mode) == (entry.placeholder, entry.file_mode)
    return same and place not in spec.placement.sources and not bytecode
