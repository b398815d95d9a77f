"""A lock's image before any byte of it: which segments, in which layers, with which directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from assembler import stack
from assembler.bytecode.python import PythonInfo
from assembler.image.base import BaseSource, User
from assembler.image.condafile import PackageInfo, read_package
from assembler.image.entry import Entry
from assembler.image.layer import LayerSpec, PackageSource, directory_entries
from assembler.image.partition import placed, plan_lock
from assembler.image.placement import check_conflicts, place
from assembler.image.record import HISTORY
from assembler.image.request import Options, home, layers_left
from assembler.image.segment import SegmentSpec
from assembler.lock.model import Lock, LockedPackage
from assembler.sources.store import Store

BASE = "base"


@dataclass(frozen=True)
class ImageLayer:
    """A layer of one image, ready to be written; ``size`` is that of its packages' files.

    ``packages`` are shown names, ``time`` the newest of them in seconds since 1970. ``oversize``
    is a layer that is larger than asked for, because one file in it is.
    """

    spec: LayerSpec
    packages: tuple[str, ...]
    size: int
    unpacked: int
    time: int
    oversize: bool = False


@dataclass(frozen=True)
class Blueprint:
    """One image: segments to make by package name, and its layers, bottom first."""

    lock: Lock
    specs: Mapping[str, SegmentSpec]
    layers: tuple[ImageLayer, ...]

    @property
    def python(self) -> PythonInfo | None:
        """The image's interpreter."""
        spec = self.specs.get("python")
        return spec.placement.python if spec else None

    def interpreter_specs(self) -> list[SegmentSpec]:
        """Return python's segment and those of what it depends on."""
        found: set[str] = set()
        waiting = ["python"]
        while waiting:
            name = waiting.pop()
            if name in self.specs and name not in found:
                found.add(name)
                depends = self.lock.by_name[name].depends
                waiting.extend(spec.split()[0].split("::")[-1] for spec in depends)
        return [self.specs[name] for name in sorted(found)]


@dataclass
class Drafter:
    """Makes blueprints; packages that several images share are read once."""

    channel: Path
    image: stack.Image
    store: Store
    options: Options
    jobs: int
    _infos: dict[str, PackageInfo] = field(default_factory=dict)

    def draft(self, lock: Lock) -> Blueprint:
        """Read the packages' descriptions and return the blueprint of a lock's image.

        Raises ChannelError when a package is missing or damaged, ImageError when two packages
        contradict each other.
        """
        missing = [package for package in lock.packages if package.path not in self._infos]
        with ThreadPoolExecutor(self.jobs) as pool:
            read = pool.map(read_package, [self.channel / package.path for package in missing])
            self._infos.update(zip([package.path for package in missing], read, strict=True))
        locked = lock.by_name.get("python")
        python = PythonInfo.of(self._infos[locked.path].index, locked.sha256) if locked else None
        specs = {package.name: self._spec(package, python) for package in lock.packages}
        check_conflicts([spec.placement for spec in specs.values()])
        return Blueprint(lock, specs, tuple(self._layers(lock, specs)))

    def _spec(self, package: LockedPackage, python: PythonInfo | None) -> SegmentSpec:
        info = self._infos[package.path]
        return SegmentSpec(
            package=self.channel / package.path,
            sha256=package.sha256,
            md5=package.md5,
            size=package.size,
            placement=place(info, python),
            prefix=self.image.prefix.rstrip("/"),
            mtime=self.options.epoch.clamp(info.timestamp),
        )

    def _layers(self, lock: Lock, specs: Mapping[str, SegmentSpec]) -> Iterable[ImageLayer]:
        foreign = self.options.base
        if lock.base and foreign is None:
            user = User.of(self.image.user, home(self.image))
            source = BaseSource(lock.base, self.store, user, self.options.epoch.bound)
            yield ImageLayer(
                LayerSpec(BASE, (), (source,)),
                tuple(f"{pin.name}={pin.version}" for pin in lock.base),
                sum(pin.size or 0 for pin in lock.base),
                0,
                max(spec.mtime for spec in specs.values()),
            )
        below = len(foreign.layers) if foreign else int(bool(lock.base))
        left = layers_left(self.options.budget, below)
        for position, planned in enumerate(plan_lock(lock, specs, left, self.options)):
            chosen = [replace(specs[name], part=planned.part) for name in planned.packages]
            time = max(spec.mtime for spec in chosen)
            directories = _directories(chosen, time, first=position == 0)
            if foreign is not None and position == 0:
                directories = _with_home(directories, self.image, time)
            yield ImageLayer(
                LayerSpec(planned.name, directories, tuple(map(PackageSource, chosen))),
                planned.packages,
                planned.size,
                sum(
                    entry.size or 0
                    for spec in chosen
                    for name, (_, entry) in spec.placement.places.items()
                    if spec.holds(name)
                ),
                time,
                oversize=planned.part is not None and planned.part.oversize,
            )


def _directories(specs: Sequence[SegmentSpec], time: int, *, first: bool) -> tuple[Entry, ...]:
    """Return the directories of a layer; the first one also has the empty conda-meta/history."""
    paths = [spec.path(place) for spec in specs for place in placed(spec)]
    explicit = [
        spec.path(place)
        for spec in specs
        for place, entry in spec.placement.places.values()
        if entry.path_type == "directory" and spec.completes
    ]
    if first:
        paths.append(specs[0].path(HISTORY))
    entries = directory_entries(paths, time, explicit)
    return (*entries, Entry.file(specs[0].path(HISTORY), 0, time)) if first else entries


def _with_home(directories: tuple[Entry, ...], image: stack.Image, time: int) -> tuple[Entry, ...]:
    """Add the user's home, which somebody else's base does not have."""
    user = User.of(image.user, home(image))
    path = user.home.strip("/").encode()
    owned = replace(Entry.directory(path, time), uid=user.uid, gid=user.gid)
    found = {entry.path: entry for entry in (*directory_entries([path], time), owned, *directories)}
    return tuple(found[name] for name in sorted(found))
