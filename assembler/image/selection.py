"""Locks narrowed to one GPU target: the same packages, without other targets' device packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assembler.channel.index import read_records
from assembler.errors import ConfigError, SolveError
from assembler.image.request import DEFAULT_TAG, Request
from assembler.lock.model import Lock, gfx_targets_of
from assembler.lock.solve import gfx_specs, solve
from assembler.stack import Profile
from assembler.targets import check_targets

ALL = "all"
_BRANCHES = dict.fromkeys(map(ord, "├└─│"))


def narrow(lock: Lock, channel: Path, profile: Profile, target: str) -> Lock:
    """Return the lock for one target; every package that may stay is the lock's own.

    The selector's build for the target comes from the channel. Raises SolveError when the channel
    has none.
    """
    if lock.gfx_targets == (target,):
        return lock
    try:
        packages = solve(
            channel, profile, specs=lock.specs, gfx=(target,), locked=lock.packages, update=()
        )
    except SolveError as error:
        # The solver draws a tree of several lines; who reads one message reads one sentence.
        why = " ".join(error.saw.translate(_BRANCHES).split())
        raise SolveError(f"the lock cannot serve {target} ({why})", remedy=error.remedy) from None
    names = {package.name for package in packages}
    return replace(
        lock,
        specs=(*lock.specs, *gfx_specs(read_records(channel), (target,))),
        packages=packages,
        gfx_targets=gfx_targets_of(names),
        input_keys={name: key for name, key in lock.input_keys.items() if name in names},
    )


def requests(
    lock: Lock, channel: Path, profile: Profile, gfx: Sequence[str], tag: str | None
) -> tuple[Request, ...]:
    """Return the images to make: one of the lock, or one for each chosen target.

    A flavour is a tag where none is given.

    ``gfx`` holds targets and ``all``. With several the tags are the targets' names, and a given
    tag is put before them (``1.0-gfx942``).
    """
    tag = tag or profile.flavour or None
    if not gfx:
        return (Request(lock, tag or DEFAULT_TAG),)
    chosen = dict.fromkeys(gfx)
    check_targets(name for name in chosen if name != ALL)
    if len(chosen) < len(gfx):
        raise ConfigError("a GPU target is given twice", remedy="name each once")
    found = []
    for name in chosen:
        chosen_lock = lock if name == ALL else narrow(lock, channel, profile, name)
        if len(chosen) == 1:
            found.append(Request(chosen_lock, tag or name))
        else:
            found.append(Request(chosen_lock, f"{tag}-{name}" if tag else name))
    return tuple(found)
