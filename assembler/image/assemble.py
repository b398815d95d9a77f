"""From lock to OCI layout: plan, write what is not cached, publish in one rename."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assembler import stack
from assembler.channel.guard import exclusive
from assembler.errors import ImageError
from assembler.image import documents
from assembler.image.activation import environment
from assembler.image.base import BaseSource, User
from assembler.image.bytecode import Interpreter
from assembler.image.cache import LayerCache, LayerRecord, SegmentCache
from assembler.image.condafile import PackageInfo, read_package
from assembler.image.entry import Entry
from assembler.image.epoch import rfc3339
from assembler.image.interpreter import prepare
from assembler.image.layer import LayerSpec, LayerWriter, PackageSource, directory_entries
from assembler.image.layout import Layout, writing
from assembler.image.placement import Placement, PythonInfo, check_conflicts, place
from assembler.image.record import HISTORY
from assembler.image.request import (
    FORMAT_VERSION,
    ImageResult,
    LayerResult,
    Options,
    Request,
    assembly_key,
    check_request,
    home,
    image_plan,
)
from assembler.image.segment import SegmentSpec
from assembler.lock.model import Lock, LockedPackage
from assembler.progress import Progress
from assembler.sources.debian import DebianArchive
from assembler.sources.store import Store

BASE = "base"
# More threads than these only cost memory: a zstd context holds some 12 MB for each.
MOST_JOBS = 4


@dataclass(frozen=True)
class _Layer:
    """A layer of one image, ready to be written."""

    spec: LayerSpec
    packages: tuple[str, ...]
    size: int
    time: int


@dataclass
class _Work:
    """What the images of one run share."""

    channel: Path
    image: stack.Image
    store: Store
    cache: Path
    options: Options
    infos: dict[str, PackageInfo] = field(default_factory=dict)
    python: tuple[PythonInfo, tuple[SegmentSpec, ...]] | None = None


def assemble(
    lock: Lock,
    channel: Path,
    image: stack.Image,
    layout: Path,
    store: Store,
    cache: Path,
    progress: Progress,
    *,
    options: Options = Options(),  # noqa: B008 (frozen)
    tag: str = "latest",
) -> ImageResult:
    """Make the image of a lock in the OCI layout at ``layout`` and return what it is.

    The layout then holds this image alone. Returns at once when it already does. Only packages
    whose segments are not in ``cache`` are read from ``channel``, base packages from ``store``
    (downloaded when they are not there). Raises ImageError, ChannelError, HashMismatchError,
    MissingToolError or BusyError; the layout is then as it was.
    """
    return assemble_all((Request(lock, tag),), channel, image, layout, store, cache, progress,
                        options=options)[0]  # fmt: skip


def assemble_all(
    requests: Sequence[Request],
    channel: Path,
    image: stack.Image,
    layout: Path,
    store: Store,
    cache: Path,
    progress: Progress,
    *,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> tuple[ImageResult, ...]:
    """Make several images in one layout; layers that they share are written and stored once."""
    for request in requests:
        check_request(request.lock, image)
    keys = {request.tag: assembly_key(request, image, options) for request in requests}
    if len(keys) != len(requests):
        raise ImageError("two images have the same tag", remedy="give each its own")
    present = _present(Layout(layout), keys)
    if present is not None:
        return tuple(_result(layout, image, request.tag, present[request.tag], up_to_date=True)
                     for request in requests)  # fmt: skip
    layout = layout.absolute()
    layout.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(layout, progress), writing(layout) as target:
        work = _Work(channel, image, store, cache, options)
        records = _Writing(work, target, progress)
        entries = [records.image(request, keys[request.tag]) for request in requests]
        target.publish(entries)
        target.sweep()
    return tuple(
        _result(layout, image, request.tag, entry, up_to_date=False, notes=records.notes)
        for request, entry in zip(requests, entries, strict=True)
    )


def _present(layout: Layout, keys: Mapping[str, str]) -> dict[str, dict[str, Any]] | None:
    """Return the layout's entries by tag when they are exactly the wanted images, else None."""
    found: dict[str, dict[str, Any]] = {}
    for entry in layout.entries():
        annotations = entry.get("annotations", {})
        if documents.KEY in annotations:
            found[annotations.get(documents.REF_NAME, "")] = entry
    same = {tag: entry["annotations"][documents.KEY] for tag, entry in found.items()} == keys
    return found if same and all(map(layout.is_complete, found.values())) else None


def _result(
    path: Path,
    image: stack.Image,
    tag: str,
    entry: Mapping[str, Any],
    *,
    up_to_date: bool,
    notes: Sequence[str] = (),
) -> ImageResult:
    manifest = Layout(path).document(entry["digest"]) or {}
    layers = tuple(
        LayerResult(
            layer["annotations"][documents.LAYER_NAME],
            layer["digest"],
            layer["size"],
            int(layer["annotations"][documents.LAYER_TAR_SIZE]),
            tuple(layer["annotations"][documents.LAYER_PACKAGES].split()),
        )
        for layer in manifest["layers"]
    )
    return ImageResult(
        layout=path,
        name=image.name,
        tag=tag,
        digest=entry["digest"],
        compressed_size=sum(layer.compressed_size for layer in layers),
        unpacked_size=sum(layer.unpacked_size for layer in layers),
        layers=layers,
        up_to_date=up_to_date,
        notes=tuple(notes),
    )


class _Writing:
    """One run: reads packages, writes layers that are missing, makes the documents."""

    def __init__(self, work: _Work, target: Layout, progress: Progress) -> None:
        self._work = work
        self._target = target
        self._progress = progress
        self._segments = SegmentCache(work.cache / "segments")
        self._layers = LayerCache(work.cache / "layers")
        self._stop = threading.Event()
        self.notes: list[str] = []

    @property
    def _jobs(self) -> int:
        return min(self._work.options.jobs or os.cpu_count() or 1, MOST_JOBS)

    def image(self, request: Request, key: str) -> dict[str, Any]:
        """Write one image's blobs and return its entry of the index."""
        lock, image, options = request.lock, self._work.image, self._work.options
        specs = self._specs(lock)
        layers = self._plan(lock, specs)
        records = self._write(lock, layers, specs)
        activation: dict[str, str] = {}
        for record in records:
            activation.update(record.activation)
            self._remember(record)
        facts = [
            documents.LayerFacts(
                layer.spec.name, record.digest, record.size, record.diff_id, record.tar_size,
                layer.packages, layer.time,
            )
            for layer, record in zip(layers, records, strict=True)
        ]  # fmt: skip
        architecture = documents.ARCHITECTURES[lock.platform][0]
        created = rfc3339(options.epoch.created(layer.time for layer in layers))
        labels = self._labels(lock, created)
        config = documents.config(
            documents.Settings(
                architecture=architecture,
                created=created,
                user=image.user,
                env=environment(image.prefix, activation, image.env),
                entrypoint=image.entrypoint,
                cmd=image.cmd,
                workdir=image.workdir,
                labels=labels,
            ),
            facts,
            [rfc3339(layer.time) for layer in layers],
        )
        manifest = documents.manifest(config, facts, options.codec.media_type, labels)
        self._target.put(config)
        self._target.put(manifest)
        return documents.index_entry(
            manifest,
            name=image.name,
            tag=request.tag,
            architecture=architecture,
            key=key,
            gfx=",".join(lock.gfx_targets),
        )

    def _labels(self, lock: Lock, created: str) -> dict[str, str]:
        root = next((lock.by_name[name] for spec in lock.specs
                     if (name := spec.split()[0]) in lock.by_name), None)  # fmt: skip
        labels = {
            f"{documents.OCI}.title": self._work.image.name,
            f"{documents.OCI}.created": created,
            f"{documents.OCI}.version": root.version if root else "",
            f"{documents.OCI}.licenses": root.license if root else "",
            f"{documents.OURS}.profile": lock.profile,
            documents.LOCK: f"sha256:{lock.digest}",
            documents.GFX: ",".join(lock.gfx_targets),
            f"{documents.OURS}.format-version": str(FORMAT_VERSION),
            f"{documents.OURS}.compression": self._work.options.codec.label,
        }
        return {name: value for name, value in labels.items() if value}

    def _specs(self, lock: Lock) -> dict[str, SegmentSpec]:
        """Read the packages' descriptions and return their segments to make, by name."""
        infos = self._work.infos
        missing = [package for package in lock.packages if package.path not in infos]
        with ThreadPoolExecutor(self._jobs) as pool:
            read = pool.map(read_package, [self._file(package) for package in missing])
            infos.update(zip([package.path for package in missing], read, strict=True))
        locked = lock.by_name.get("python")
        python = PythonInfo.of(infos[locked.path].index, locked.sha256) if locked else None
        specs = {package.name: self._spec(package, python) for package in lock.packages}
        check_conflicts([spec.placement for spec in specs.values()])
        return specs

    def _file(self, package: LockedPackage) -> Path:
        return self._work.channel / package.path

    def _spec(self, package: LockedPackage, python: PythonInfo | None) -> SegmentSpec:
        info = self._work.infos[package.path]
        return SegmentSpec(
            package=self._file(package),
            sha256=package.sha256,
            md5=package.md5,
            size=package.size,
            placement=place(info, python),
            prefix=self._work.image.prefix.rstrip("/"),
            mtime=self._work.options.epoch.clamp(info.timestamp),
        )

    def _plan(self, lock: Lock, specs: Mapping[str, SegmentSpec]) -> list[_Layer]:
        image, options = self._work.image, self._work.options
        layers = []
        newest = max(spec.mtime for spec in specs.values())
        if lock.base:
            source = BaseSource(
                lock.base, self._work.store, User.of(image.user, home(image)), options.epoch.bound
            )
            names = tuple(f"{pin.name}={pin.version}" for pin in lock.base)
            size = sum(pin.size or 0 for pin in lock.base)
            layers.append(_Layer(LayerSpec(BASE, (), (source,)), names, size, newest))
        for position, planned in enumerate(image_plan(lock, options.budget)):
            chosen = [specs[name] for name in planned.packages]
            time = max(spec.mtime for spec in chosen)
            directories = _directories(chosen, time, first=position == 0)
            spec = LayerSpec(planned.name, directories, tuple(map(PackageSource, chosen)))
            layers.append(_Layer(spec, planned.packages, planned.size, time))
        return layers

    def _write(
        self, lock: Lock, layers: Sequence[_Layer], specs: Mapping[str, SegmentSpec]
    ) -> list[LayerRecord]:
        """Return the layers' records; those that the layout lacks are written, biggest first."""
        codec = self._work.options.codec
        keys = [layer.spec.key(codec) for layer in layers]
        found: dict[str, LayerRecord] = {}
        for key in keys:
            record = self._layers.get(key)
            if record and self._target.has(record.digest, record.size):
                found[key] = record
        missing = {key: layer for key, layer in zip(keys, layers, strict=True) if key not in found}
        if missing:
            if any(layer.spec.name == BASE for layer in missing.values()):
                self._bring_base(lock)
            found.update(self._write_missing(lock, missing, specs))
        return [found[key] for key in keys]

    def _write_missing(
        self, lock: Lock, missing: Mapping[str, _Layer], specs: Mapping[str, SegmentSpec]
    ) -> dict[str, LayerRecord]:
        codec = self._work.options.codec
        interpreter = self._interpreter(lock, missing, specs)
        total = sum(
            sum(entry.size or 0 for entry in spec.placement.info.paths)
            for layer in missing.values()
            for spec in (specs[name] for name in layer.packages if name in specs)
        )
        try:
            with self._progress.task("writing layers", total, in_bytes=True) as task:

                def advance(amount: float) -> None:
                    if self._stop.is_set():
                        raise _StoppedError
                    task.advance(amount)

                writer = LayerWriter(
                    self._target.blobs,
                    self._segments,
                    codec,
                    interpreter,
                    threads=self._jobs,
                    advance=advance,
                )
                return self._in_parallel(writer, missing)
        finally:
            if interpreter:
                interpreter.close()

    def _in_parallel(
        self, writer: LayerWriter, missing: Mapping[str, _Layer]
    ) -> dict[str, LayerRecord]:
        def write(key: str) -> LayerRecord:
            blob, segments = writer.write(missing[key].spec)
            record = LayerRecord.of(key, blob, segments)
            self._layers.put(record)
            return record

        order = sorted(missing, key=lambda key: (-missing[key].size, key))
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="layer") as pool:
            futures = [pool.submit(write, key) for key in order]
            try:
                return {key: future.result() for key, future in zip(order, futures, strict=True)}
            except BaseException as error:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, _StoppedError):
                    raise next(_errors(futures)) from None
                raise

    def _interpreter(
        self, lock: Lock, missing: Mapping[str, _Layer], specs: Mapping[str, SegmentSpec]
    ) -> Interpreter | None:
        """Return the channel's python when some layer to write has modules to compile."""
        names = {name for layer in missing.values() for name in layer.packages if name in specs}
        if not any(
            specs[name].placement.sources
            and self._segments.get(specs[name].key(self._work.options.codec)) is None
            for name in names
        ):
            return None
        python = specs["python"].placement.python
        assert python is not None
        closure = _closure(lock, "python")
        return prepare(python, [specs[name] for name in closure], self._work.cache, self._jobs)

    def _bring_base(self, lock: Lock) -> None:
        store = self._work.store
        wanted = [pin for pin in lock.base if not store.has(pin.sha256)]
        if wanted:
            architecture = documents.ARCHITECTURES[lock.platform][1]
            folder = self._work.cache / "apt" / lock.base[0].suite if lock.base[0].suite else None
            assert folder is not None
            archive = DebianArchive(str(lock.base[0].suite), architecture, folder)
            with self._progress.task(f"downloading {len(wanted)} base packages"):
                archive.download(wanted, store)

    def _remember(self, record: LayerRecord) -> None:
        if record.stripped:
            self.notes.append(f"set-id bits were removed from {', '.join(record.stripped)}")
        if record.not_compiled:
            self._progress.detail(
                f"{len(record.not_compiled)} modules do not compile and have no bytecode: "
                + ", ".join(record.not_compiled[:5])
            )


class _StoppedError(Exception):
    """Another layer failed."""


def _errors(futures: Iterable[Any]) -> Iterator[BaseException]:
    for future in futures:
        if future.done() and not future.cancelled():
            error = future.exception()
            if error is not None and not isinstance(error, _StoppedError):
                yield error


def _closure(lock: Lock, name: str) -> list[str]:
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found and current in lock.by_name:
            found[current] = None
            depends = lock.by_name[current].depends
            waiting.extend(spec.split()[0].split("::")[-1] for spec in depends)
    return sorted(found)


def _directories(specs: Sequence[SegmentSpec], time: int, *, first: bool) -> tuple[Entry, ...]:
    """Return the directories of a layer; the first one also has the empty conda-meta/history."""
    paths = [spec.path(place) for spec in specs for place in _placed(spec.placement)]
    explicit = [
        spec.path(place)
        for spec in specs
        for place, entry in spec.placement.places.values()
        if entry.path_type == "directory"
    ]
    entries = directory_entries(paths, time, explicit)
    history = Entry.file(specs[0].path(HISTORY), 0, time)
    return (*entries, history) if first else entries


def _placed(placement: Placement) -> Iterable[str]:
    python = placement.python
    yield from placement.installed()
    if python is not None:
        yield from map(python.bytecode, placement.sources)
