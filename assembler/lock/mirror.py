"""A closed channel: everything the lock names in one folder, for this site or one without network.

An export is a small project folder of its own: stack.toml, the channel with the locked packages
alone, the locks, and the base's Debian packages in its store, so that every command works there
with ``--project`` and without a network.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import tomlkit

from assembler.channel.guard import exclusive
from assembler.channel.index import publish, read_records
from assembler.channel.location import state_folder
from assembler.errors import ChannelError, ConfigError, SourceUnavailableError
from assembler.lock.files import write_lock
from assembler.lock.install import check_packages, demand_packages
from assembler.lock.model import Lock, LockedPackage
from assembler.progress import Progress
from assembler.sources import pypi, transfer
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.workspace import Workspace

STAGE = "mirror"
README = """\
# Profile {name}, locked: {count} packages, their lock and the image's base. No network is needed.
With the assembler, here:  assembler install -p PREFIX   ·   assembler image   ·   assembler verify
With conda, here:  ATOM_CHANNEL=$PWD/channel conda create -p PREFIX --file locks/{name}/explicit.txt
"""


@dataclass(frozen=True)
class Mirrored:
    """The lock once its channel is closed, and the packages that were copied for that."""

    lock: Lock
    copied: tuple[LockedPackage, ...]


def missing_packages(lock: Lock, channel: Path) -> tuple[LockedPackage, ...]:
    """Return the packages that come from elsewhere and are not in the channel as locked."""
    elsewhere = replace(lock, packages=tuple(p for p in lock.packages if p.url is not None))
    return tuple(package for package, _ in check_packages(elsewhere, channel, trust_stamps=True))


def mirror(
    lock: Lock, channel: Path, store: Store, progress: Progress, *, jobs: int = 4
) -> Mirrored:
    """Copy every locked package that is not in the channel into it, checked by SHA-256.

    Downloads go through the store, so a killed run goes on where it stopped. Returns the lock with
    all packages in the channel; the caller writes it. Raises ChannelError, with nothing copied,
    when a package that was built here is absent or not the locked one.
    """
    own = replace(lock, packages=tuple(p for p in lock.packages if p.url is None))
    if lacking := check_packages(own, channel, trust_stamps=True):
        package, what = lacking[0]
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise ChannelError(
            f"{channel / package.path} {what}{more}", remedy="see `assembler lock --check`"
        )
    wanted = missing_packages(lock, channel)
    if wanted:
        _download(wanted, store, progress, jobs)
        with exclusive(channel, progress):
            stage = state_folder(channel) / STAGE
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir(parents=True)
            try:
                for package in wanted:
                    # A copy: the channel's file gets a mode of its own, the store's must not.
                    shutil.copyfile(store.path(package.sha256), stage / package.file)
                publish(channel, [stage / package.file for package in wanted], progress=progress)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    closed = replace(lock, packages=tuple(replace(package, url=None) for package in lock.packages))
    return Mirrored(closed, wanted)


def _download(wanted: Sequence[LockedPackage], store: Store, progress: Progress, jobs: int) -> None:
    network = transfer.settings(pypi.settings())
    total = sum(package.size for package in wanted)
    with (
        progress.task(f"copying {len(wanted)} packages", total, in_bytes=True) as task,
        ThreadPoolExecutor(jobs) as pool,
    ):

        def bring(package: LockedPackage) -> None:
            assert package.url is not None
            if store.has(package.sha256):
                task.advance(package.size)
                return
            transfer.download(
                store,
                network,
                package.url,
                package.sha256,
                name=package.file,
                advance=task.advance,
            )

        list(pool.map(bring, wanted))


def export(
    workspace: Workspace, profile: Profile, lock: Lock, target: Path, progress: Progress
) -> None:
    """Make ``target`` a folder that needs no network: stack.toml, channel, locks, base packages.

    ``lock`` must be closed and its base packages in the store. A folder that an export made before
    is brought up to date; one with other things in it is refused.
    """
    channel, source = target / "channel", workspace.channel
    if target.exists() and any(target.iterdir()) and not (target / "stack.toml").is_file():
        raise ConfigError(
            f"{target} has files and is not an export", remedy="name a new or empty folder"
        )
    store, out = Store(workspace.store), Store(target / "build" / "store")
    for pin in lock.base:
        if not store.has(pin.sha256):
            raise SourceUnavailableError(
                f"the store has no copy of {pin.file}",
                remedy="run `assembler image` once with a network, then export again",
            )
    demand_packages(lock, source, progress)
    target.mkdir(parents=True, exist_ok=True)
    with exclusive(channel, progress):
        here = {(record.path, record.sha256) for record in read_records(channel)}
        stage = state_folder(channel) / STAGE
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        wanted = [p for p in lock.packages if (p.path, p.sha256) not in here]
        total = sum(package.size for package in wanted)
        with progress.task("copying packages", total, in_bytes=True) as task:
            for package in wanted:
                shutil.copyfile(source / package.path, stage / package.file)
                task.advance(package.size)
        locked = {package.path for package in lock.packages}
        publish(
            channel,
            [stage / package.file for package in wanted],
            remove=[path for path, _ in here if path not in locked],
            progress=progress,
        )
        shutil.rmtree(stage)
    for pin in lock.base:
        if not out.has(pin.sha256):
            out.add(store.path(pin.sha256), pin.sha256, name=pin.file)
    demand_packages(lock, channel, progress)
    _write_stack(workspace.root / "stack.toml", target / "stack.toml", profile)
    write_lock(lock, target / "locks" / f"{profile.name}{profile.suffix}")
    text = README.format(name=profile.name, count=len(lock.packages))
    (target / "README.md").write_text(text, encoding="utf-8")


def _write_stack(source: Path, target: Path, profile: Profile) -> None:
    """Copy stack.toml; commands in the export mean the exported profile without naming it."""
    document = tomlkit.parse(source.read_text(encoding="utf-8"))
    if profile.name in document["profile"]:
        document["default_profile"] = profile.name
    target.write_text(tomlkit.dumps(document), encoding="utf-8")
