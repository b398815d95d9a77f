"""The image's Debian packages in the lock: pinned once, kept until they vanish or are asked for."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from assembler.errors import ConfigError
from assembler.sources.debian import DebianArchive
from assembler.sources.pins import Pin
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.workspace import Workspace

ARCHITECTURES = {"linux-64": "amd64", "linux-aarch64": "arm64"}


class Archive(Protocol):
    """What of a Debian suite's archive locking needs (``sources.debian.DebianArchive``)."""

    def resolve(self, names: Iterable[str]) -> tuple[Pin, ...]:
        """Return pins of the newest versions served."""

    def served(self, pins: Iterable[Pin]) -> dict[Pin, bool]:
        """Tell for each pin whether this very file is still served."""


@dataclass(frozen=True)
class BaseMove:
    """A base package whose pin changed; an empty version is one that is new or gone."""

    name: str
    old: str
    new: str


def archive_folder(workspace: Workspace, profile: Profile) -> Path:
    """Return apt's private folder for the suite of the profile's image."""
    name = f"{profile.image.base.suite}-{ARCHITECTURES[profile.platform]}"
    return workspace.store / "apt" / name


def open_archive(workspace: Workspace, profile: Profile) -> DebianArchive:
    """Return the archive of the suite of the profile's image; nothing is asked of it yet."""
    return DebianArchive(
        profile.image.base.suite,
        ARCHITECTURES[profile.platform],
        archive_folder(workspace, profile),
    )


def pin_base(
    profile: Profile,
    old: Sequence[Pin],
    store: Store,
    archive: Callable[[], Archive],
    *,
    update: Collection[str] | None = (),
) -> tuple[Pin, ...]:
    """Return the pins of the base packages that the profile names, sorted by name.

    Pins of ``old`` (of the same suite) stay; only packages that are new in the profile, named in
    ``update`` (None: all), or neither in the store nor served any more are resolved anew. The
    archive is opened only when one of these may be.
    """
    base = profile.image.base
    kept = {
        pin.name: pin
        for pin in old
        if pin.suite == base.suite
        and pin.name in base.packages
        and update is not None
        and pin.name not in update
    }
    unsure = [pin for pin in kept.values() if not store.has(pin.sha256)]
    if unsure:
        for pin, served in archive().served(unsure).items():
            if not served:
                del kept[pin.name]
    wanted = [name for name in base.packages if name not in kept]
    if wanted:
        kept |= {pin.name: pin for pin in archive().resolve(wanted)}
    return tuple(kept[name] for name in sorted(set(base.packages)))


def base_moves(old: Sequence[Pin], new: Sequence[Pin]) -> tuple[BaseMove, ...]:
    """Return what changed between two sets of base pins, by name."""
    before, after = ({pin.name: pin for pin in pins} for pins in (old, new))
    return tuple(
        BaseMove(
            name,
            before[name].version if name in before else "",
            after[name].version if name in after else "",
        )
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def check_update_names(names: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for a name of ``--update`` that nothing of the lock has."""
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--update names {name!r}, which neither the lock nor the channel has",
                remedy="name a package that `assembler lock` lists",
            )


def vanished(pins: Sequence[Pin], store: Store, folder: Path) -> tuple[Pin, ...]:
    """Return the pins that cannot be had any more, as far as this machine knows; no network.

    A pin is known to have vanished when the store lacks its file and the suite's package lists,
    as apt last got them into ``folder``, do not name its hash. Without lists nothing is known.
    """
    missing = [pin for pin in pins if not store.has(pin.sha256)]
    lists = [
        path
        for path in (folder / "state" / "lists").glob("*_Packages")
        if path.is_file() and path.stat().st_size
    ]
    if not missing or not lists:
        return ()
    for path in lists:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            missing = [pin for pin in missing if data.find(pin.sha256.encode()) < 0]
    return tuple(missing)
