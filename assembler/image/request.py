"""What to assemble, and everything that the bytes of the result depend on. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from assembler import stack
from assembler.digest import digest_of, sha256_bytes
from assembler.errors import ConfigError, ImageError
from assembler.image.base import BASE_FORMAT
from assembler.image.compression import Codec
from assembler.image.debian import read_slimming
from assembler.image.documents import ARCHITECTURES
from assembler.image.epoch import Epoch
from assembler.image.foreign import ForeignBase
from assembler.image.layer import LAYER_FORMAT
from assembler.image.plan import (
    DEFAULT_BUDGET,
    MOST_LAYERS,
    PlannedPackage,
    classes_source,
    depths,
)
from assembler.image.segment import SEGMENT_FORMAT
from assembler.lock.model import Lock

# Changes only when the bytes of an image may; written into every image.
FORMAT_VERSION = 1
DEFAULT_TAG = "latest"
NONROOT_HOME = "/home/nonroot"
_TAG = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
_GLIBC = re.compile(r"^__glibc\s*>=\s*([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True)
class Request:
    """One image to make: its lock and its tag."""

    lock: Lock
    tag: str = DEFAULT_TAG

    def __post_init__(self) -> None:
        """Refuse tags that no registry takes."""
        if not _TAG.match(self.tag):
            raise ConfigError(
                f"{self.tag!r} is not a tag",
                remedy="use letters, digits, '.', '_' and '-', at most 128 of them",
            )


@dataclass(frozen=True)
class Options:
    """How to assemble; all but ``jobs`` change bytes.

    ``max_layer_size`` is in bytes before compression.
    """

    codec: Codec = field(default_factory=Codec)
    budget: int = DEFAULT_BUDGET
    epoch: Epoch = field(default_factory=Epoch)
    base: ForeignBase | None = None
    max_layer_size: int | None = None
    jobs: int | None = None


@dataclass(frozen=True)
class LayerResult:
    """A layer of the finished image; sizes in bytes."""

    name: str
    digest: str
    compressed_size: int
    unpacked_size: int
    packages: tuple[str, ...]


@dataclass(frozen=True)
class LayerPreview:
    """A layer that would be written: ``held`` when the image now in the layout has it.

    ``digest`` is None, and ``size`` that of the packages, while the layer was never written.
    """

    name: str
    packages: tuple[str, ...]
    size: int
    digest: str | None
    held: bool


@dataclass(frozen=True)
class Pull:
    """What a node must pull: bytes and number of layers, out of how many of the image.

    ``exact`` is False while some of these layers were never written: then the bytes are those of
    their packages.
    """

    size: int
    layers: int
    image_size: int
    image_layers: int
    exact: bool

    @classmethod
    def of(cls, layers: Sequence[LayerPreview]) -> Pull:
        """Return what somebody pulls who holds the layers that are marked so."""
        missing = [layer for layer in layers if not layer.held]
        return cls(
            size=sum(layer.size for layer in missing),
            layers=len(missing),
            image_size=sum(layer.size for layer in layers),
            image_layers=len(layers),
            exact=all(layer.digest for layer in missing),
        )


@dataclass(frozen=True)
class ImageResult:
    """A finished image: ``digest`` is its manifest's, sizes are sums over the layers in bytes."""

    layout: Path
    name: str
    tag: str
    digest: str
    compressed_size: int
    unpacked_size: int
    layers: tuple[LayerResult, ...]
    up_to_date: bool
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {**asdict(self), "layout": str(self.layout)}


def home(image: stack.Image) -> str:
    """Return the user's home folder: the working directory when it is one."""
    return image.workdir if image.workdir.startswith("/home/") else NONROOT_HOME


def assembly_key(request: Request, image: stack.Image, options: Options) -> str:
    """Return the key of everything that the image's bytes depend on."""
    limit = options.max_layer_size
    return digest_of(
        {
            **({"max-layer-size": limit} if limit is not None else {}),
            "lock": request.lock.digest,
            "image": image.model_dump(mode="json"),
            "tag": request.tag,
            "compression": options.codec.label,
            "budget": options.budget,
            "bound": options.epoch.bound,
            "base": options.base.digest if options.base else None,
            "formats": [FORMAT_VERSION, SEGMENT_FORMAT, LAYER_FORMAT, BASE_FORMAT],
            "rules": [sha256_bytes(rules) for rules in (read_slimming().source, classes_source())],
        }
    )


def planned_packages(lock: Lock) -> list[PlannedPackage]:
    """Return what the layer plan is to know of a lock's packages."""
    below = depths({package.name: package.depends for package in lock.packages})
    return [
        PlannedPackage(package.name, package.size, below[package.name]) for package in lock.packages
    ]


def layers_left(budget: int, base_layers: int) -> int:
    """Return how many layers packages may have above a base; ImageError when there is no room."""
    if base_layers >= MOST_LAYERS:
        raise ImageError(
            f"the base image has {base_layers} layers, and engines mount little more than that",
            remedy="choose a base with fewer",
        )
    return max(1, budget - base_layers)


def check_request(lock: Lock, image: stack.Image, base: ForeignBase | None = None) -> None:
    """Raise ImageError when a lock cannot become this image."""
    if lock.platform not in ARCHITECTURES:
        raise ImageError(
            f"the lock is for {lock.platform}",
            remedy=f"images are made for {', '.join(sorted(ARCHITECTURES))}",
        )
    if not lock.packages:
        raise ImageError("the lock holds no packages", remedy="run `assembler lock`")
    for package in lock.packages:
        if package.url is not None:
            raise ImageError(
                f"{package.file} is not in the channel but at {package.url}",
                remedy="copy it with `assembler mirror`, then run `assembler lock`",
            )
    if not image.prefix.startswith("/") or image.prefix.strip("/") in ("", "usr"):
        raise ImageError(
            f"the prefix {image.prefix!r} is not an absolute path of its own",
            remedy="set one like /opt/atom",
        )
    if base is not None:
        base.check(image.prefix)
        base.check(home(image))
    _check_glibc(lock, base.glibc if base else image.base.glibc)


def _check_glibc(lock: Lock, glibc: str) -> None:
    have = _numbers(glibc)
    for package in lock.packages:
        for spec in package.depends:
            found = _GLIBC.match(spec)
            if found and _numbers(found[1]) > have:
                raise ImageError(
                    f"{package.name} needs glibc {found[1]}, but the base brings {glibc}",
                    remedy="choose a newer base: another Debian release in stack.toml, or --base",
                )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
