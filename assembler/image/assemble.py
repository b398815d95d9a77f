"""From lock to OCI layout: draft, write what is not cached, publish in one rename."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from assembler import stack
from assembler.channel.guard import exclusive
from assembler.errors import ImageError
from assembler.image import documents
from assembler.image.blueprint import BASE, Drafter
from assembler.image.cache import LayerCache, SegmentCache
from assembler.image.epoch import Epoch
from assembler.image.layout import Layout, writing
from assembler.image.request import (
    ImageResult,
    LayerPreview,
    LayerResult,
    Options,
    Request,
    assembly_key,
    check_request,
)
from assembler.image.stamps import Stamps
from assembler.image.writer import Writer
from assembler.lock.model import Lock
from assembler.progress import Progress
from assembler.sources.store import Store

# Processes that compile modules, and threads that read packages' descriptions.
MOST_JOBS = 16


def assemble(
    lock: Lock,
    channel: Path,
    image: stack.Image,
    layout: Path,
    store: Store,
    cache: Path,
    progress: Progress,
    *,
    options: Options | None = None,
    tag: str = "latest",
) -> ImageResult:
    """Make the image of a lock in the OCI layout at ``layout`` and return what it is.

    The layout then holds this image alone. Returns at once when it already does. Only packages
    whose segments are not in ``cache`` are read from ``channel``, base packages from ``store``
    (downloaded when they are not there). Blobs that changed since they were written are written
    again. ``options`` default to SOURCE_DATE_EPOCH's bound. Raises
    ImageError, ChannelError, HashMismatchError, MissingToolError or BusyError; the layout is then
    as it was.
    """
    requests = (Request(lock, tag),)
    return assemble_all(requests, channel, image, layout, store, cache, progress, options=options)[
        0
    ]


def assemble_all(
    requests: Sequence[Request],
    channel: Path,
    image: stack.Image,
    layout: Path,
    store: Store,
    cache: Path,
    progress: Progress,
    *,
    options: Options | None = None,
) -> tuple[ImageResult, ...]:
    """Make several images in one layout; layers that they share are written and stored once."""
    options = options or Options(epoch=Epoch.from_environment())
    for request in requests:
        check_request(request.lock, image, options.base)
    keys = {request.tag: assembly_key(request, image, options) for request in requests}
    if len(keys) != len(requests):
        raise ImageError("two images have the same tag", remedy="give each its own")
    stamps = Stamps.of(layout, cache)
    present = _present(Layout(layout, stamps), keys)
    if present is not None:
        stamps.save()
        if Layout(layout).leftovers():
            with exclusive(layout.absolute(), progress):
                Layout(layout).sweep()
        return tuple(
            read_result(layout, image.name, present[request.tag], up_to_date=True)
            for request in requests
        )
    layout, cache = layout.absolute(), cache.absolute()
    layout.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(layout, progress), writing(layout, stamps) as target:
        present = _present(target, keys)  # by whoever held the guard before
        if present is not None:
            return tuple(
                read_result(layout, image.name, present[request.tag], up_to_date=True)
                for request in requests
            )
        drafter = Drafter(channel.absolute(), image, store, options, _jobs(options))
        writer = Writer(drafter, target, cache, progress)
        entries = [writer.image(request, keys[request.tag]) for request in requests]
        target.publish([*entries, *_referrers(target, entries, progress)])
        target.sweep()
        stamps.save(only=frozenset(target.reachable()))
        SegmentCache(cache / "segments").clean()
    return tuple(
        read_result(layout, image.name, entry, up_to_date=False, notes=writer.notes)
        for entry in entries
    )


def is_present(
    requests: Sequence[Request],
    image: stack.Image,
    layout: Path,
    cache: Path,
    *,
    options: Options | None = None,
) -> bool:
    """Tell whether a layout holds exactly these images, whole: then assembling writes nothing."""
    options = options or Options(epoch=Epoch.from_environment())
    keys = {request.tag: assembly_key(request, image, options) for request in requests}
    stamps = Stamps.of(layout, cache)
    present = _present(Layout(layout, stamps), keys) is not None
    stamps.save()
    return present


def _referrers(
    target: Layout, entries: Sequence[Mapping[str, Any]], progress: Progress
) -> list[dict[str, Any]]:
    """Return the attestations that still belong to one of the images."""
    kept, damaged = target.referrers({entry["digest"] for entry in entries})
    if damaged:
        progress.say(
            f"{damaged} damaged attestations were dropped; `assembler sbom --attach` makes new ones"
        )
    return kept


def preview(
    lock: Lock,
    channel: Path,
    image: stack.Image,
    layout: Path,
    store: Store,
    cache: Path,
    *,
    options: Options | None = None,
    since: Collection[str] | None = None,
) -> tuple[LayerPreview, ...]:
    """Return the layers that an image would have, and which of them exist. Writes nothing.

    A layer is ``held`` when its digest is in ``since`` (default: the layers of the images now in
    the layout): who holds these pulls the others. Sizes of layers that were never written are
    those of their packages.
    """
    options = options or Options(epoch=Epoch.from_environment())
    check_request(lock, image, options.base)
    blueprint = Drafter(channel, image, store, options, _jobs(options)).draft(lock)
    records = LayerCache(cache / "layers")
    held = Layout(layout).layers() if since is None else since
    foreign = options.base
    result = [
        LayerPreview(f"{BASE}-{number}", (), part["size"], part["digest"], part["digest"] in held)
        for number, part in enumerate(foreign.layers if foreign else (), 1)
    ]
    for layer in blueprint.layers:
        record = records.get(layer.spec.key(options.codec))
        result.append(
            LayerPreview(
                name=layer.spec.name,
                packages=layer.packages,
                size=record.size if record else layer.size,
                digest=record.digest if record else None,
                held=record is not None and record.digest in held,
            )
        )
    return tuple(result)


def _jobs(options: Options) -> int:
    return min(options.jobs or os.cpu_count() or 1, MOST_JOBS)


def _present(layout: Layout, keys: Mapping[str, str]) -> dict[str, dict[str, Any]] | None:
    """Return the layout's entries by tag when they are exactly the wanted images, else None."""
    found: dict[str, dict[str, Any]] = {}
    for entry in layout.entries():
        annotations = entry.get("annotations", {})
        if documents.KEY in annotations:
            found[annotations.get(documents.REF_NAME, "")] = entry
    same = {tag: entry["annotations"][documents.KEY] for tag, entry in found.items()} == keys
    return found if same and all(map(layout.is_complete, found.values())) else None


def read_result(
    path: Path,
    name: str,
    entry: Mapping[str, Any],
    *,
    up_to_date: bool,
    notes: Sequence[str] = (),
) -> ImageResult:
    """Return the result that an entry of a layout's index stands for."""
    manifest = Layout(path).document(entry["digest"]) or {}
    layers = tuple(
        LayerResult(
            layer["annotations"][documents.LAYER_NAME],
            layer["digest"],
            layer["size"],
            int(layer["annotations"][documents.LAYER_TAR_SIZE]),
            tuple(layer["annotations"][documents.LAYER_PACKAGES].split()),
        )
        for layer in manifest.get("layers", ())
    )
    return ImageResult(
        layout=path,
        name=name,
        tag=entry.get("annotations", {}).get(documents.REF_NAME, ""),
        digest=entry["digest"],
        compressed_size=sum(layer.compressed_size for layer in layers),
        unpacked_size=sum(layer.unpacked_size for layer in layers),
        layers=layers,
        up_to_date=up_to_date,
        notes=tuple(notes),
    )
