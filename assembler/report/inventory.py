"""What is in an image, by name: conda packages, the wheels inside them, the base's packages.

One function reads packages (their info/ and nothing else); the rest is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packageurl import PackageURL

from assembler.channel.records import read_info
from assembler.lock.model import Lock, LockedPackage
from assembler.sources.pins import Pin

_DIST_INFO = re.compile(r"(?:^|/)([A-Za-z0-9._]+)-([^-/]+)\.dist-info/METADATA$")
# Debian release -> the number that package URLs name it by.
_RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14"}


@dataclass(frozen=True, order=True)
class WheelPart:
    """A Python distribution inside a conda package, as its dist-info names it."""

    name: str
    version: str

    @property
    def purl(self) -> str:
        """The package URL; PyPI's spelling of the name."""
        name = re.sub(r"[-_.]+", "-", self.name).lower()
        return str(PackageURL("pypi", None, name, self.version))


@dataclass(frozen=True)
class CondaPart:
    """A conda package of the lock; ``sources`` maps upstream files to their SHA-256."""

    package: LockedPackage
    wheels: tuple[WheelPart, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    input_key: str = ""

    @property
    def purl(self) -> str:
        """The package URL, as the conda type of the PURL specification has it."""
        package = self.package
        kind = "conda" if package.file.endswith(".conda") else "tar.bz2"
        qualifiers = {
            "build": package.build,
            "channel": "local",
            "subdir": package.subdir,
            "type": kind,
        }
        return str(PackageURL("conda", None, package.name, package.version, qualifiers))


@dataclass(frozen=True)
class DebianPart:
    """A Debian package of the base."""

    pin: Pin

    @property
    def purl(self) -> str:
        """The package URL."""
        release = _RELEASES.get(self.pin.suite or "", self.pin.suite or "")
        qualifiers = {"arch": self.pin.architecture or "", "distro": f"debian-{release}"}
        return str(PackageURL("deb", "debian", self.pin.name, self.pin.version, qualifiers))


@dataclass(frozen=True)
class Inventory:
    """Everything in an image, sorted by name."""

    conda: tuple[CondaPart, ...]
    debian: tuple[DebianPart, ...]


@dataclass(frozen=True)
class Subject:
    """The image that a document speaks of; ``created`` is RFC 3339."""

    name: str
    tag: str
    digest: str
    created: str


def take_inventory(lock: Lock, channel: Path) -> Inventory:
    """Return what an image of the lock holds; ChannelError when a package cannot be read."""
    return Inventory(
        tuple(_look(package, channel) for package in lock.packages),
        tuple(DebianPart(pin) for pin in lock.base),
    )


def _look(package: LockedPackage, channel: Path) -> CondaPart:
    names = ("info/paths.json", "info/assembler.json", "info/about.json")
    info = read_info(channel / package.path, *names)
    data = {name: json.loads(info[name]) if name in info else {} for name in names}
    wheels = {
        WheelPart(found[1], found[2])
        for entry in data["info/paths.json"].get("paths", ())
        if (found := _DIST_INFO.search(entry["_path"]))
    }
    recorded = data["info/assembler.json"]
    about = data["info/about.json"]
    return CondaPart(
        package,
        tuple(sorted(wheels)),
        dict(sorted(recorded.get("inputs", {}).get("sources", {}).items())),
        str(about.get("home") or about.get("dev_url") or ""),
        str(recorded.get("input_key", "")),
    )
