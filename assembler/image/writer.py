"""Writes one run's images into a layout: layers in parallel, then the documents."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from assembler.bytecode.compiler import Interpreter
from assembler.digest import CHUNK
from assembler.image import documents
from assembler.image.activation import environment
from assembler.image.blueprint import BASE, Blueprint, Drafter, ImageLayer
from assembler.image.cache import LayerCache, LayerRecord, SegmentCache, scratch_file
from assembler.image.epoch import rfc3339
from assembler.image.foreign import ForeignBase, media_type
from assembler.image.interpreter import LazyInterpreter, prepare
from assembler.image.layer import LayerWriter
from assembler.image.layout import Layout
from assembler.image.request import FORMAT_VERSION, Request
from assembler.lock.model import Lock
from assembler.progress import Progress
from assembler.sources.debian import DebianArchive

# Two layers with two compressing threads each: more would be faster on many cores, but a zstd
# context holds some 25 MB a thread, and assembling is to fit into 300 MB.
LAYERS_AT_ONCE = 2
THREADS_A_LAYER = 2
LARGE_LAYER = 5 * 10**9  # bytes


class Writer:
    """One run: writes the layers that the layout lacks, makes the documents."""

    def __init__(self, drafter: Drafter, target: Layout, cache: Path, progress: Progress) -> None:
        self._drafter = drafter
        self._options = drafter.options
        self._target = target
        self._cache = cache
        self._progress = progress
        self._segments = SegmentCache(cache / "segments")
        self._layers = LayerCache(cache / "layers")
        self._stop = threading.Event()
        self.notes: list[str] = []

    def image(self, request: Request, key: str) -> dict[str, Any]:
        """Write one image's blobs and return its entry of the index."""
        lock, image = request.lock, self._drafter.image
        blueprint = self._drafter.draft(lock)
        records = self._write(blueprint)
        activation: dict[str, str] = {}
        for record in records:
            activation.update(record.activation)
            self._tell(record)
        self._tell_oversize(blueprint)
        foreign = self._options.base
        facts = self._foreign(foreign) if foreign else []
        facts += [
            documents.LayerFacts(
                layer.spec.name,
                record.digest,
                record.size,
                record.diff_id,
                record.tar_size,
                layer.packages,
                layer.time,
            )
            for layer, record in zip(blueprint.layers, records, strict=True)
        ]
        architecture = documents.ARCHITECTURES[lock.platform][0]
        created = rfc3339(self._options.epoch.created(fact.created for fact in facts))
        labels = self._labels(lock, created)
        settings = documents.Settings(
            architecture=architecture,
            created=created,
            user=image.user,
            env=environment(
                image.prefix, activation, image.env, dict(foreign.env) if foreign else {}
            ),
            entrypoint=image.entrypoint,
            cmd=image.cmd,
            workdir=image.workdir,
            labels=labels,
        )
        config = documents.config(settings, facts, [rfc3339(fact.created) for fact in facts])
        manifest = documents.manifest(config, facts, self._options.codec.media_type, labels)
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

    def _foreign(self, base: ForeignBase) -> list[documents.LayerFacts]:
        """Bring a base image's layers into the layout, as they are."""
        source = Layout(base.layout)
        facts = []
        for number, layer in enumerate(base.layers, 1):
            digest, size = layer["digest"], layer["size"]
            if not self._target.has(digest, size):
                with scratch_file(self._target.blobs) as (stream, path):
                    with source.blob(digest).open("rb") as blob:
                        shutil.copyfileobj(blob, stream, CHUNK)
                    stream.flush()
                    path.replace(self._target.blob(digest))
            facts.append(
                documents.LayerFacts(
                    f"{BASE}-{number}",
                    digest,
                    size,
                    base.diff_ids[number - 1],
                    base.sizes[number - 1],
                    (),
                    0,
                    media_type(layer),
                )
            )
        return facts

    def _labels(self, lock: Lock, created: str) -> dict[str, str]:
        bound = self._options.epoch.bound
        named = (spec.split()[0].split("::")[-1] for spec in lock.specs)
        root = next((lock.by_name[name] for name in named if name in lock.by_name), None)
        labels = {
            f"{documents.OCI}.title": self._drafter.image.name,
            f"{documents.OCI}.created": created,
            f"{documents.OCI}.version": root.version if root else "",
            f"{documents.OCI}.licenses": root.license if root else "",
            documents.BASE_DIGEST: self._options.base.digest if self._options.base else "",
            documents.PROFILE: lock.profile,
            documents.LOCK: f"sha256:{lock.digest}",
            documents.GFX: ",".join(lock.gfx_targets),
            documents.FORMAT: str(FORMAT_VERSION),
            documents.COMPRESSION: self._options.codec.label,
            documents.MAX_LAYERS: str(self._options.budget),
            documents.MAX_LAYER_SIZE: str(self._options.max_layer_size or ""),
            documents.BOUND: "" if bound is None else str(bound),
        }
        return {name: value for name, value in labels.items() if value}

    def _write(self, blueprint: Blueprint) -> list[LayerRecord]:
        """Return the layers' records; those that the layout lacks are written, biggest first."""
        keys = [layer.spec.key(self._options.codec) for layer in blueprint.layers]
        found: dict[str, LayerRecord] = {}
        missing: dict[str, ImageLayer] = {}
        for key, layer in zip(keys, blueprint.layers, strict=True):
            record = self._layers.get(key)
            if record and self._target.has(record.digest, record.size):
                found[key] = record
            else:
                missing[key] = layer
        if missing:
            if any(layer.spec.name == BASE for layer in missing.values()):
                self._bring_base(blueprint.lock)
            written = self._write_missing(blueprint, missing)
            for record in written.values():
                self._target.wrote(record.digest)
            found.update(written)
        return [found[key] for key in keys]

    def _write_missing(
        self, blueprint: Blueprint, missing: Mapping[str, ImageLayer]
    ) -> dict[str, LayerRecord]:
        interpreter = LazyInterpreter(lambda: self._interpreter(blueprint))
        total = sum(layer.unpacked for layer in missing.values())
        try:
            with self._progress.task("writing layers", total, in_bytes=True) as task:

                def advance(amount: float) -> None:
                    if self._stop.is_set():
                        raise _StoppedError
                    task.advance(amount)

                writer = LayerWriter(
                    self._target.blobs,
                    self._segments,
                    self._options.codec,
                    interpreter,
                    threads=min(self._drafter.jobs, THREADS_A_LAYER),
                    advance=advance,
                )
                return self._in_parallel(writer, missing)
        finally:
            interpreter.close()

    def _in_parallel(
        self, writer: LayerWriter, missing: Mapping[str, ImageLayer]
    ) -> dict[str, LayerRecord]:
        def write(key: str) -> LayerRecord:
            blob, segments = writer.write(missing[key].spec)
            record = LayerRecord.of(key, blob, segments)
            self._layers.put(record)
            return record

        order = sorted(missing, key=lambda key: (-missing[key].size, key))
        workers = min(self._drafter.jobs, LAYERS_AT_ONCE)
        with ThreadPoolExecutor(workers, thread_name_prefix="layer") as pool:
            futures = [pool.submit(write, key) for key in order]
            try:
                return {key: future.result() for key, future in zip(order, futures, strict=True)}
            except BaseException as error:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, _StoppedError):
                    raise next(_errors(futures)) from None
                raise

    def _interpreter(self, blueprint: Blueprint) -> Interpreter:
        assert blueprint.python is not None
        specs = blueprint.interpreter_specs()
        return prepare(blueprint.python, specs, self._cache, self._drafter.jobs)

    def _bring_base(self, lock: Lock) -> None:
        store = self._drafter.store
        wanted = [pin for pin in lock.base if not store.has(pin.sha256)]
        if wanted:
            suite = lock.suite or str(wanted[0].suite)
            architecture = documents.ARCHITECTURES[lock.platform][1]
            archive = DebianArchive(suite, architecture, self._cache / "apt" / suite)
            with self._progress.task(f"downloading {len(wanted)} base packages"):
                archive.download(wanted, store)

    def _tell_oversize(self, blueprint: Blueprint) -> None:
        for layer in blueprint.layers:
            if layer.oversize:
                note = f"layer {layer.spec.name!r} is over the size asked for: one file of it is"
                self.notes.append(note)
                self._progress.say(note)

    def _tell(self, record: LayerRecord) -> None:
        if record.size > LARGE_LAYER:
            self.notes.append(f"layer {record.digest[:19]} has {decimal(record.size)}")
            self._progress.say(
                f"{self.notes[-1]}; some registries take no layer over 10 GB, others are slow: "
                "--max-layer-size cuts it"
            )
        if record.stripped:
            note = f"set-id bits were removed from {', '.join(record.stripped)}"
            self.notes.append(note)
            self._progress.say(note)
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
