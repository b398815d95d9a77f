"""From a built channel to a lock: solve, pin the base, collect what else the lock says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from assembler.channel.guard import exclusive, reading
from assembler.channel.index import input_keys, read_records
from assembler.errors import LockError
from assembler.lock.base import Archive, check_update_names, open_archive, pin_base
from assembler.lock.diff import Difference, compare
from assembler.lock.files import read_lock, write_lock
from assembler.lock.model import LOCAL_CHANNEL, Lock, gfx_targets_of
from assembler.lock.solve import SELECTOR, choose_root, gfx_specs, solve
from assembler.progress import Progress
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.workspace import Workspace

ALL_TARGETS = "all"


@dataclass(frozen=True)
class Locked:
    """A lock that was made: ``written`` names the files that changed, ``difference`` what did."""

    lock: Lock
    difference: Difference
    written: tuple[str, ...]


def update_lock(
    workspace: Workspace,
    profile: Profile,
    progress: Progress,
    *,
    gfx: Sequence[str] | None = None,
    update: Collection[str] | None = None,
    update_base: bool = False,
    archive: Callable[[], Archive] | None = None,
) -> Locked:
    """Make the profile's lock and write its files, as ``make_lock`` and ``write_lock`` say.

    A lock that is there but cannot be read is replaced, which is told to ``progress``. The channel
    is held until the files are written, so that of two runs the later one's lock stays.
    """
    folder = workspace.lock_folder(profile)
    with exclusive(workspace.channel, progress):
        old = None
        with reading(folder, LockError):
            present = workspace.lock_file(profile).exists()
        if present:
            try:
                old = read_lock(folder)
            except LockError as error:
                progress.say(f"{error.saw}; it is made anew.")
        lock = make_lock(
            workspace,
            profile,
            progress,
            old=old,
            gfx=gfx,
            update=update,
            update_base=update_base,
            archive=archive,
        )
        written = write_lock(lock, folder)
    return Locked(lock, compare(old, lock), written)


def locked_gfx(lock: Lock) -> tuple[str, ...]:
    """Return the GPU targets a lock was asked for; none when it was asked for all."""
    chosen = [spec for spec in lock.specs if spec.split()[0] == SELECTOR]
    return lock.gfx_targets if chosen else ()


def wants(lock: Lock, gfx: Sequence[str]) -> bool:
    """Tell whether a lock was made for what ``--gfx`` says: all targets, or just those it names.

    Saying nothing is content with every lock. A lock of all targets follows the channel's, so that
    naming each of them is another request.
    """
    if not gfx:
        return True
    return set(locked_gfx(lock)) == (set() if ALL_TARGETS in gfx else set(gfx))


def make_lock(
    workspace: Workspace,
    profile: Profile,
    progress: Progress,
    *,
    old: Lock | None = None,
    gfx: Sequence[str] | None = None,
    update: Collection[str] | None = None,
    update_base: bool = False,
    archive: Callable[[], Archive] | None = None,
) -> Lock:
    """Solve the profile against its channel and return the lock; nothing is written.

    ``gfx`` names GPU targets, ``("all",)`` all of the channel's, None what ``old`` was asked for.
    Without ``update`` every package may move; with it only those it names (and what they force).
    The base's pins stay those of ``old`` unless they vanished, are named in ``update``, or
    ``update_base`` asks for all. The channel is held meanwhile, so that no build changes it.
    """
    if gfx is None:
        gfx = locked_gfx(old) if old is not None else ()
    elif ALL_TARGETS in gfx:
        gfx = ()
    base_names = set(profile.image.base.packages)
    with exclusive(workspace.channel, progress):
        records = read_records(workspace.channel)
        if update is not None:
            known = {record.name for record in records} | base_names
            known |= set(old.by_name) if old is not None else set()
            check_update_names(update, known)
        with progress.task("solving"):
            packages = solve(
                workspace.channel,
                profile,
                gfx=gfx,
                locked=old.packages if old is not None else (),
                update=None if update is None else set(update) - base_names,
            )
        keys = input_keys(workspace.channel)
    base = pin_base(
        profile,
        old.base if old is not None else (),
        Store(workspace.store),
        archive or (lambda: open_archive(workspace, profile)),
        update=None if update_base else update or (),
    )
    return Lock(
        profile=profile.name,
        platform=profile.platform,
        specs=(choose_root(records, profile), *gfx_specs(records, gfx)),
        channels=(LOCAL_CHANNEL, *profile.channels),
        packages=packages,
        base=base,
        virtual_packages=dict(sorted(profile.virtual_packages.items())),
        gfx_targets=gfx_targets_of(package.name for package in packages),
        input_keys={p.name: keys[p.path] for p in packages if p.url is None and p.path in keys},
        suite=profile.image.base.suite,
        base_names=tuple(sorted(base_names)),
    )
