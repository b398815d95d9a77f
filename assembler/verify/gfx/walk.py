"""Finds the files inside folders, archives and images, without unpacking more than one at a time.

Formats: zip (wheels, .conda, whose inner ``pkg-…`` and ``info-…`` archives are opened in place),
tar plain or in gzip, bzip2, xz or zstd, ar (System V, GNU and BSD names), OCI image layouts
(folders and plain tars; of files in several layers only the uppermost counts, whiteouts hide).
What an archive lists is not trusted: memory is bounded, and what cannot be read is a Trouble.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import ImageError
from assembler.verify.gfx import archives
from assembler.verify.gfx.model import MalformedError, Trouble
from assembler.verify.gfx.source import FileSource, Source
from assembler.verify.oci import LayoutArchive, LayoutFolder, OciImage, is_layout, read_images

MAX_DEPTH = 6
"""Archives inside archives are opened down to this depth."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file that is no archive: its name inside what was walked, and its bytes.

    ``source`` stays readable until the next member is asked for.
    """

    path: str
    source: Source


Found = Member | Trouble


def walk(path: Path) -> Iterator[Found]:
    """Yield every regular file below a path, archives opened, in a fixed order.

    Symbolic links are not followed below ``path`` itself. Raises OSError when ``path`` or a file
    below it cannot be opened.
    """
    if path.is_dir():
        if is_layout(path):
            yield from _layout(path, LayoutFolder(path))
        else:
            yield from _folder(path)
        return
    with FileSource.open(path) as source:
        if archives.kind_of(source) is archives.Kind.TAR and _is_layout_archive(path):
            yield from _layout(path, LayoutArchive.index(path))
        else:
            yield from walk_source(source, path.name, top=True)


def _folder(root: Path) -> Iterator[Found]:
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for name in sorted(files):
            place = Path(folder, name)
            if stat.S_ISREG(place.lstat().st_mode):
                with FileSource.open(place) as source:
                    yield from walk_source(source, place.relative_to(root).as_posix())


def _raise(error: OSError) -> None:
    raise error


def walk_source(source: Source, name: str, *, depth: int = 0, top: bool = False) -> Iterator[Found]:
    """Yield the files in one file's bytes: the file itself, or what it contains as an archive.

    Names inside an archive stand after ``<archive>!/``, or alone when it is at the ``top``.
    """
    kind = archives.kind_of(source)
    if kind is None:
        yield Member(name, source)
        return
    if depth >= MAX_DEPTH:
        yield Trouble(name, 0, f"archives inside archives, more than {MAX_DEPTH} deep")
        return
    prefix = "" if top else f"{name}!/"
    transparent = kind is archives.Kind.ZIP and name.endswith(".conda")
    opened = archives.open_archive(kind, source)
    try:
        for inner, content in opened:
            if isinstance(content, MalformedError):
                yield Trouble(
                    f"{prefix}{inner}".rstrip("/") or name, content.offset, content.reason
                )
            elif inner == archives.CONTENT and kind is not archives.Kind.ZIP:
                # A compressed file that is no tar: its content has no name of its own.
                yield from walk_source(content, f"{name}!", depth=depth + 1)
            elif transparent and inner.startswith(("pkg-", "info-")):
                yield from _conda_part(content, inner, prefix, depth)
            else:
                yield from walk_source(content, f"{prefix}{inner}", depth=depth + 1)
    except MalformedError as error:
        yield Trouble(name, error.offset, f"damaged {kind.value} archive: {error.reason}")


def _conda_part(content: Source, inner: str, prefix: str, depth: int) -> Iterator[Found]:
    for found in walk_source(content, inner, depth=depth + 1, top=True):
        if isinstance(found, Trouble):
            yield Trouble(f"{prefix}{found.path}", found.offset, found.reason, found.section)
        else:
            yield Member(f"{prefix}{found.path}", found.source)


def _is_layout_archive(path: Path) -> bool:
    try:
        return "oci-layout" in LayoutArchive.index(path).places
    except ImageError:
        return False


def _layout(path: Path, blobs: LayoutFolder | LayoutArchive) -> Iterator[Found]:
    try:
        images = read_images(path, blobs)
    except ImageError as error:
        yield Trouble(path.name, 0, error.saw)
        return
    for image in images:
        label = "" if len(images) == 1 else f"{image.reference or image.manifest.digest}!/"
        yield from _image(image, label)


def _image(image: OciImage, label: str) -> Iterator[Found]:
    """Yield the files that the image's file system shows, from the top layer down."""
    shown: set[str] = set()
    hidden: set[str] = set()
    for position in range(len(image.layers) - 1, -1, -1):
        own: set[str] = set()
        own_hidden: set[str] = set()
        try:
            with ExitStack() as stack:
                stream = stack.enter_context(image.layer(position))
                for inner, content in archives.read_tar(stream, whiteouts=own_hidden):
                    if inner in shown or _below(inner, hidden):
                        continue
                    own.add(inner)
                    if isinstance(content, MalformedError):
                        yield Trouble(f"{label}{inner}", content.offset, content.reason)
                    else:
                        yield from walk_source(content, f"{label}{inner}", depth=1)
        except (ImageError, MalformedError) as error:
            reason = error.saw if isinstance(error, ImageError) else error.reason
            yield Trouble(f"{label}layer {position}", 0, reason)
        shown |= own
        hidden |= own_hidden


def _below(path: str, hidden: set[str]) -> bool:
    """Whether a whiteout of an upper layer hides a path or a folder that it is in."""
    if not hidden:
        return False
    parts = path.split("/")
    return any("/".join(parts[:count]) in hidden for count in range(len(parts) + 1))
