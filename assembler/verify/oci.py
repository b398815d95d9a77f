"""Reads OCI image layouts and archives of them, blob by blob.

Formats: OCI image-spec 1.1 (oci-layout, index.json, blobs/<algorithm>/<hex>). An archive is a plain
tar of a layout, with or without docker's manifest.json beside it; blobs are read at their place in
the tar, nothing is unpacked. Every blob is checked against its digest while it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import zstandard

from assembler.errors import ImageError
from assembler.verify.config import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUT_FILE = "oci-layout"
MAX_JSON = 16 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"


class Blobs(Protocol):
    """Where a layout's files are."""

    def open(self, name: str) -> IO[bytes]:
        """Open a member of the layout; ImageError when it is not there."""

    def suspect(self, name: str) -> None:
        """Mark a damaged member, so that who remembers it as whole looks again."""


@dataclass(frozen=True)
class LayoutFolder:
    """A layout as a folder."""

    path: Path

    def open(self, name: str) -> IO[bytes]:
        """Open a file of the layout."""
        try:
            return (self.path / name).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise _lacks(self.path, name) from None

    def suspect(self, name: str) -> None:
        """Give a damaged file a new time: `assembler image` hashes files whose time changed."""
        with suppress(OSError):
            os.utime(self.path / name)


@dataclass(frozen=True)
class LayoutArchive:
    """A layout inside a plain tar."""

    path: Path
    places: Mapping[str, tuple[int, int]]

    @classmethod
    def index(cls, path: Path) -> LayoutArchive:
        """List the archive's members without reading their bytes."""
        places: dict[str, tuple[int, int]] = {}
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    if member.isfile():
                        name = member.name.removeprefix("./").lstrip("/")
                        places[name] = (member.offset_data, member.size)
        except tarfile.TarError as error:
            raise ImageError(
                f"{path} is not a plain tar archive ({error})",
                remedy="give an OCI layout or an uncompressed archive of one",
            ) from None
        return cls(path, places)

    def open(self, name: str) -> IO[bytes]:
        """Open a member at its place in the archive."""
        if name not in self.places:
            raise _lacks(self.path, name)
        offset, size = self.places[name]
        return cast("IO[bytes]", io.BufferedReader(_Window(self.path, offset, size)))

    def suspect(self, name: str) -> None:
        """Nothing: nobody remembers an archive's members."""


class _Window(io.RawIOBase):
    """A piece of a file as a file of its own."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self._stream = path.open("rb")
        self._stream.seek(offset)
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer)[: self._left]
        count = self._stream.readinto(wanted)
        self._left -= count
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _lacks(path: Path, name: str) -> ImageError:
    return ImageError(
        f"the image {path} lacks {name}", remedy="make it again: its files are not complete"
    )


@dataclass(frozen=True)
class Descriptor:
    """A blob's name: media type, digest ``sha256:<hex>`` and size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The blob's path inside the layout."""
        return "blobs/" + self.digest.replace(":", "/", 1)

    @classmethod
    def parse(cls, data: Any, where: Path) -> Descriptor:
        """Check a descriptor's form; ImageError when it is none."""
        try:
            digest = str(data["digest"])
            algorithm, _, hexadecimal = digest.partition(":")
            if algorithm != "sha256" or len(hexadecimal) != 64:
                raise ValueError(digest)
            int(hexadecimal, 16)
            return cls(
                str(data.get("mediaType", "")),
                digest,
                int(data["size"]),
                dict(data.get("annotations") or {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ImageError(
                f"{where} has a faulty descriptor ({error})", remedy="make the image again"
            ) from None


@dataclass(frozen=True)
class OciImage:
    """One image of a layout: what its manifest and configuration say."""

    path: Path
    blobs: Blobs
    manifest: Descriptor
    config_blob: Descriptor
    config: ImageConfig
    layers: tuple[Descriptor, ...]
    diff_ids: tuple[str, ...]
    reference: str | None

    def check(self) -> None:
        """Read every blob; ImageError when one is missing or has another size or digest."""
        for what, blob in (
            ("manifest", self.manifest),
            ("configuration", self.config_blob),
            *(("layer", layer) for layer in self.layers),
        ):
            digest, size = hashlib.sha256(), 0
            with self.blobs.open(blob.file) as stream:
                while data := stream.read(1 << 20):
                    digest.update(data)
                    size += len(data)
            if size != blob.size:
                self.blobs.suspect(blob.file)
                raise ImageError(
                    f"a {what} of {self.path} should have {blob.size} bytes and has {size} "
                    f"({blob.digest})",
                    remedy=CHANGED,
                )
            seen = f"sha256:{digest.hexdigest()}"
            if seen != blob.digest:
                self.blobs.suspect(blob.file)
            _expect(self.path, blob.digest, seen, what)

    @contextmanager
    def layer(self, position: int) -> Iterator[IO[bytes]]:
        """Open a layer as an uncompressed tar stream.

        After the block the blob and the tar have been checked against digest and diff_id, provided
        that the stream was read to its end.
        """
        descriptor = self.layers[position]
        with self.blobs.open(descriptor.file) as raw:
            packed = _Hashed(raw)
            with _inflate(packed, self.path) as plain:
                unpacked = _Hashed(plain)
                yield cast("IO[bytes]", unpacked)
                while unpacked.read(1 << 20):
                    pass
            while packed.read(1 << 20):
                pass
        _expect(self.path, descriptor.digest, packed.digest())
        if position < len(self.diff_ids):
            _expect(self.path, self.diff_ids[position], unpacked.digest())


class _Hashed(io.RawIOBase):
    """A stream that hashes what is read through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


CHANGED = "make the image again: its bytes were changed or cut short"


def _expect(path: Path, wanted: str, seen: str, what: str = "layer") -> None:
    if wanted != seen:
        raise ImageError(f"a {what} of {path} should be {wanted} and is {seen}", remedy=CHANGED)


@contextmanager
def _inflate(stream: _Hashed, path: Path) -> Iterator[IO[bytes]]:
    """Undo gzip or zstd by the stream's first bytes; anything else is taken as it is."""
    buffered = io.BufferedReader(stream, 1 << 20)
    start = buffered.peek(4)[:4]
    try:
        if start.startswith(GZIP):
            with gzip.GzipFile(fileobj=buffered) as plain:
                yield cast("IO[bytes]", plain)
        elif start == ZSTD:
            with zstandard.ZstdDecompressor().stream_reader(
                buffered, read_across_frames=True, closefd=False
            ) as plain:
                yield cast("IO[bytes]", plain)
        else:
            yield cast("IO[bytes]", buffered)
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise ImageError(
            f"a layer of {path} cannot be decompressed ({error})", remedy="make the image again"
        ) from None
    finally:
        buffered.detach()


def _json(
    blobs: Blobs, name: str, path: Path, digest: str | None = None, what: str = "manifest"
) -> dict[str, Any]:
    """Read a JSON object, checked against its digest; ImageError when it is something else."""
    with blobs.open(name) as stream:
        data = stream.read(MAX_JSON)
    if digest is not None:
        seen = "sha256:" + hashlib.sha256(data).hexdigest()
        if seen != digest:
            blobs.suspect(name)
        _expect(path, digest, seen, what)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(
            f"{path}: {name} is not JSON ({error})", remedy="make the image again"
        ) from None
    if not isinstance(found, dict):
        raise ImageError(f"{path}: {name} is no JSON object", remedy="make the image again")
    return found


def is_layout(path: Path) -> bool:
    """Whether a folder looks like an OCI image layout."""
    return (path / LAYOUT_FILE).is_file()


def read_images(path: Path, blobs: Blobs) -> tuple[OciImage, ...]:
    """Return every image that index.json lists, nested indexes included, attachments left out.

    ImageError when there is none, or what lists or describes one has not the form of the format.
    """
    try:
        return _read_images(path, blobs)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ImageError(
            f"{path} is not described as OCI images are ({error})", remedy="make the image again"
        ) from None


def _read_images(path: Path, blobs: Blobs) -> tuple[OciImage, ...]:
    images: list[OciImage] = []
    waiting = [(item, 0) for item in _json(blobs, "index.json", path).get("manifests", [])]
    while waiting:
        item, depth = waiting.pop(0)
        descriptor = Descriptor.parse(item, path)
        data = _json(blobs, descriptor.file, path, descriptor.digest)
        if "manifests" in data and depth < 4:
            waiting[:0] = [(inner, depth + 1) for inner in data["manifests"]]
        elif "config" in data and not data.get("subject") and not data.get("artifactType"):
            images.append(_image(path, blobs, descriptor, data))
    if not images:
        raise ImageError(f"{path} holds no image", remedy="make it again with `assembler image`")
    return tuple(images)


def _image(path: Path, blobs: Blobs, manifest: Descriptor, data: Mapping[str, Any]) -> OciImage:
    layers = tuple(Descriptor.parse(layer, path) for layer in data.get("layers", []))
    config_at = Descriptor.parse(data["config"], path)
    config = _json(blobs, config_at.file, path, config_at.digest, "configuration")
    inner = config.get("config") or {}
    env = dict(str(line).partition("=")[::2] for line in inner.get("Env") or [])
    return OciImage(
        path=path,
        blobs=blobs,
        manifest=manifest,
        config_blob=config_at,
        layers=layers,
        diff_ids=tuple((config.get("rootfs") or {}).get("diff_ids") or ()),
        reference=manifest.annotations.get("org.opencontainers.image.ref.name"),
        config=ImageConfig(
            env=env,
            user=str(inner.get("User") or ""),
            entrypoint=tuple(inner.get("Entrypoint") or ()),
            cmd=tuple(inner.get("Cmd") or ()),
            workdir=str(inner.get("WorkingDir") or "/"),
            labels=dict(inner.get("Labels") or {}),
            layer_sizes=tuple(layer.size for layer in layers),
        ),
    )
