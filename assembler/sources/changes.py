"""What pinning changes in pin files, entry by entry: the diff that people review."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assembler.sources.entries import Entry
from assembler.sources.pins import Pin, Wheel


@dataclass(frozen=True)
class Change:
    """One entry of a pin file that was written: versions and hashes before and after.

    ``old`` is empty for a new entry, ``new`` for one that went.
    """

    path: Path
    name: str
    old: str
    new: str
    old_sha256: str
    new_sha256: str

    @property
    def real(self) -> bool:
        """Tell whether anything differs."""
        return (self.old, self.old_sha256) != (self.new, self.new_sha256)


def recipe_change(path: Path, old: Entry, new: Pin) -> Change:
    """Return what becomes of an entry of a recipe's pin file."""
    before, digest = str(old.data.get("version", "")), str(old.data.get("sha256", ""))
    before = "" if old.new else before
    return Change(path, new.name, before, new.version, digest, new.sha256)


def wheel_change(path: Path, name: str, old: Wheel | None, new: Wheel | None) -> Change:
    """Return what becomes of an entry of a wheel list."""
    return Change(
        path=path,
        name=name,
        old=old.version if old else "",
        new=new.version if new else "",
        old_sha256=old.sha256 if old else "",
        new_sha256=new.sha256 if new else "",
    )
