"""What changed between two locks: data, and the table and Markdown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from rich.filesize import decimal

from assembler.lock.base import BaseMove, base_moves
from assembler.lock.model import Lock, LockedPackage

Kind = Literal["added", "removed", "upgraded", "downgraded", "rebuilt"]


@dataclass(frozen=True)
class Change:
    """One package's change; the fields of the side that lacks it are empty. Sizes in bytes."""

    name: str
    kind: Kind
    old: str
    new: str
    old_size: int
    new_size: int
    old_license: str
    new_license: str
    old_sha256: str
    new_sha256: str

    @property
    def license_changed(self) -> bool:
        """Whether a package that stays has another licence."""
        return bool(self.old and self.new and self.old_license != self.new_license)


@dataclass(frozen=True)
class Difference:
    """Everything that differs between two locks. ``settings`` are old and new of other values."""

    changes: tuple[Change, ...]
    base: tuple[BaseMove, ...]
    gfx_added: tuple[str, ...]
    gfx_removed: tuple[str, ...]
    settings: Mapping[str, tuple[str, str]]
    old_size: int
    new_size: int

    @property
    def is_empty(self) -> bool:
        """Whether the locks say the same."""
        return not (
            self.changes or self.base or self.gfx_added or self.gfx_removed or self.settings
        )

    def as_dict(self) -> dict[str, object]:
        """Return the difference as plain data."""
        return {
            "changes": [asdict(change) for change in self.changes],
            "base": [asdict(move) for move in self.base],
            "gfx_added": list(self.gfx_added),
            "gfx_removed": list(self.gfx_removed),
            "settings": {key: list(pair) for key, pair in self.settings.items()},
            "old_size": self.old_size,
            "new_size": self.new_size,
        }


def _kind(old: LockedPackage, new: LockedPackage) -> Kind:
    from rattler import Version

    before, after = Version(old.version), Version(new.version)
    if before == after:
        return "rebuilt"
    return "upgraded" if before < after else "downgraded"


def _change(name: str, old: LockedPackage | None, new: LockedPackage | None) -> Change:
    kind: Kind = "added" if old is None else "removed" if new is None else _kind(old, new)
    return Change(
        name=name,
        kind=kind,
        old=old.label if old else "",
        new=new.label if new else "",
        old_size=old.size if old else 0,
        new_size=new.size if new else 0,
        old_license=old.license if old else "",
        new_license=new.license if new else "",
        old_sha256=old.sha256 if old else "",
        new_sha256=new.sha256 if new else "",
    )


def _settings(lock: Lock) -> dict[str, str]:
    return {
        "profile": lock.profile,
        "platform": lock.platform,
        "specs": ", ".join(lock.specs),
        "channels": ", ".join(lock.channels),
        "suite": lock.suite,
        **{f"virtual package {name}": value for name, value in lock.virtual_packages.items()},
    }


def compare(old: Lock | None, new: Lock) -> Difference:
    """Return what changed from one lock to another; everything is new when there was none."""
    before = old.by_name if old is not None else {}
    changes = tuple(
        _change(name, before.get(name), new.by_name.get(name))
        for name in sorted({*before, *new.by_name})
        if before.get(name) != new.by_name.get(name)
    )
    was = set(old.gfx_targets) if old is not None else set()
    here, there = _settings(old) if old is not None else {}, _settings(new)
    return Difference(
        changes=changes,
        base=base_moves(old.base if old is not None else (), new.base),
        gfx_added=tuple(sorted(set(new.gfx_targets) - was)),
        gfx_removed=tuple(sorted(was - set(new.gfx_targets))),
        settings={
            key: (here.get(key, ""), there.get(key, ""))
            for key in sorted({*here, *there})
            if old is not None and here.get(key) != there.get(key)
        },
        old_size=sum(package.size for package in before.values()),
        new_size=sum(package.size for package in new.packages),
    )


def _size(number: int) -> str:
    return decimal(number) if number else ""


def _grown(difference: Difference) -> str:
    grown = difference.new_size - difference.old_size
    sign = "+" if grown >= 0 else "-"
    return f"{decimal(difference.new_size)} in all ({sign}{decimal(abs(grown))})"


def _rows(difference: Difference) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for change in difference.changes:
        words: str = change.kind
        if change.license_changed:
            words += f", licence {change.old_license or 'none'} → {change.new_license or 'none'}"
        size = " → ".join(filter(None, (_size(change.old_size), _size(change.new_size))))
        rows.append((change.name, change.old, change.new, size, words))
    for move in difference.base:
        kind = "base: " + ("added" if not move.old else "removed" if not move.new else "moved")
        rows.append((move.name, move.old, move.new, "", kind))
    return rows


def _notes(difference: Difference) -> list[str]:
    notes = [f"GPU target {name} added" for name in difference.gfx_added]
    notes += [f"GPU target {name} removed" for name in difference.gfx_removed]
    notes += [
        f"{key}: {old or 'nothing'} → {new or 'nothing'}"
        for key, (old, new) in difference.settings.items()
    ]
    return notes


HEAD = ("package", "old", "new", "size", "change")


def table(difference: Difference) -> str:
    """Return the difference as a plain table for a terminal."""
    if difference.is_empty:
        return "no differences"
    rows = [HEAD, *_rows(difference)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(rows) == 1:
        lines = []
    return "\n".join([*lines, *_notes(difference), _grown(difference)])


def markdown(difference: Difference) -> str:
    """Return the difference as Markdown for a pull request."""
    if difference.is_empty:
        return "No differences."
    lines = []
    if rows := _rows(difference):
        lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
        ]
        lines.append("")
    lines += [f"- {note}" for note in (*_notes(difference), _grown(difference))]
    return "\n".join(lines)
