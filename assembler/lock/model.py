"""The lock: an exact set of packages, what it was solved for, and what it assumes.

One model; ``files`` renders it as conda-lock.yml, pixi.lock and explicit.txt. Nothing in it depends
on the machine: places are relative to the channel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from assembler.channel.records import Record
from assembler.digest import digest_of
from assembler.errors import LockError
from assembler.sources.pins import Pin

# Goes up when a reader of the number before would misread the file. Readers refuse newer ones.
FORMAT_VERSION = 1
# How the local channel is called in a lock; conda-lock and conda expand the variable.
CHANNEL_VARIABLE = "ATOM_CHANNEL"
LOCAL_CHANNEL = f"file://${CHANNEL_VARIABLE}"
_SPEC_NAME = re.compile(r"^(?:[^\s\[]*::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(.*)$", re.DOTALL)
_DEVICE = re.compile(r".-device-(gfx[0-9a-f]+)$")


@dataclass(frozen=True)
class LockedPackage:
    """One package of a lock.

    ``path`` is its place in the channel (``linux-64/x-1-0.conda``), ``url`` where it came from when
    that is another channel and it has not been mirrored yet. ``size`` in bytes, ``timestamp`` in
    milliseconds since 1970.
    """

    name: str
    version: str
    build: str
    build_number: int
    subdir: str
    file: str
    path: str
    sha256: str
    md5: str
    size: int
    depends: tuple[str, ...] = ()
    license: str = ""
    constrains: tuple[str, ...] = ()
    timestamp: int | None = None
    noarch: str | None = None
    site_packages: str | None = None
    url: str | None = None

    @classmethod
    def from_record(cls, record: Record, *, site_packages: str | None = None) -> LockedPackage:
        """Return the locked form of a package of the local channel."""
        return cls(
            name=record.name,
            version=record.version,
            build=record.build,
            build_number=record.build_number,
            subdir=record.subdir,
            file=record.file,
            path=record.path,
            sha256=record.sha256,
            md5=record.md5,
            size=record.size,
            depends=record.depends,
            license=record.license,
            constrains=record.constrains,
            timestamp=record.timestamp,
            noarch=record.noarch,
            site_packages=site_packages,
        )

    @property
    def label(self) -> str:
        """How tables call the package: ``version build``."""
        return f"{self.version} {self.build}"


@dataclass(frozen=True)
class Lock:
    """A solved stack. ``packages`` and ``base`` are sorted by name; names are unique.

    ``specs`` are what was asked for, ``virtual_packages`` what was assumed of every machine,
    ``gfx_targets`` the targets whose device packages are in the set, ``input_keys`` the keys of
    the packages that were built here, by package name. ``suite`` is the Debian release of ``base``
    and ``base_names`` what was asked of it.
    """

    profile: str
    platform: str
    specs: tuple[str, ...]
    channels: tuple[str, ...]
    packages: tuple[LockedPackage, ...]
    base: tuple[Pin, ...] = ()
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    gfx_targets: tuple[str, ...] = ()
    input_keys: Mapping[str, str] = field(default_factory=dict)
    suite: str = ""
    base_names: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        """Put packages and pins into their one order and refuse two of one name."""
        packages = tuple(sorted(self.packages, key=lambda package: package.name))
        base = tuple(sorted(self.base, key=lambda pin: pin.name))
        object.__setattr__(self, "packages", packages)
        object.__setattr__(self, "base", base)
        for what, names in (
            ("package", [package.name for package in packages]),
            ("base package", [pin.name for pin in base]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise LockError(
                    f"the lock has the {what} {twice[0]} twice", remedy="run `assembler lock`"
                )

    @cached_property
    def by_name(self) -> Mapping[str, LockedPackage]:
        """The packages by name."""
        return {package.name: package for package in self.packages}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything the lock says, in one spelling."""
        return digest_of(self.as_dict())

    def as_dict(self) -> dict[str, object]:
        """Return the lock as plain data."""
        return {
            "format_version": self.format_version,
            "profile": self.profile,
            "platform": self.platform,
            "specs": list(self.specs),
            "channels": list(self.channels),
            "virtual_packages": dict(sorted(self.virtual_packages.items())),
            "gfx_targets": list(self.gfx_targets),
            "suite": self.suite,
            "base_names": list(self.base_names),
            "base": [pin.model_dump(exclude_defaults=True) for pin in self.base],
            "packages": [asdict(package) for package in self.packages],
            "input_keys": dict(sorted(self.input_keys.items())),
        }


def split_spec(spec: str) -> tuple[str, str]:
    """Split a dependency into the package's name and the rest of the match specification.

    >>> split_spec("python >=3.11,<3.12.0a0 *_cp311"), split_spec("atom-device=*=gfx942*")
    (('python', '>=3.11,<3.12.0a0 *_cp311'), ('atom-device', '=*=gfx942*'))
    """
    match = _SPEC_NAME.match(spec)
    return (match[1].lower(), match[2]) if match else (spec, "")


def gfx_targets_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the GPU targets whose device packages are among the package names, sorted.

    >>> gfx_targets_of(["amd-aiter", "amd-aiter-device-gfx950", "amd-aiter-device-gfx942"])
    ('gfx942', 'gfx950')
    """
    return tuple(sorted({match[1] for name in names if (match := _DEVICE.search(name))}))


def topological(packages: Iterable[LockedPackage]) -> tuple[LockedPackage, ...]:
    """Return the packages so that each comes after those it depends on, else by name.

    A cycle of dependencies is entered at its first name.
    """
    by_name = {package.name: package for package in sorted(packages, key=lambda item: item.name)}
    done: dict[str, LockedPackage] = {}
    open_names: set[str] = set()
    # An explicit stack, since chains of dependencies may be longer than Python's.
    stack = [(name, False) for name in reversed(by_name)]
    while stack:
        name, finished = stack.pop()
        if finished:
            done.setdefault(name, by_name[name])
        elif name not in done and name not in open_names:
            open_names.add(name)
            stack.append((name, True))
            needs = sorted({split_spec(spec)[0] for spec in by_name[name].depends})
            stack.extend((need, False) for need in reversed(needs) if need in by_name)
    return tuple(done.values())
