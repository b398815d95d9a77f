"""Is the lock fresh? Pure: no solving, no network, nothing written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from assembler.channel.index import read_records
from assembler.errors import ChannelError
from assembler.lock.base import archive_folder, vanished
from assembler.lock.condalock import NewerLockError
from assembler.lock.files import read_lock, render_beside
from assembler.lock.install import check_packages
from assembler.lock.model import LOCAL_CHANNEL, Lock
from assembler.lock.solve import SELECTOR, choose_root
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.workspace import Workspace


class Verdict(Enum):
    """What a check ends with; the value is the command's exit code.

    The first that applies in this order is the verdict, findings of all kinds are listed.
    """

    FRESH = 0
    NEWER = 43
    SPEC = 40
    CHANNEL = 41
    BASE = 42
    RENDERING = 44

    @property
    def words(self) -> str:
        """The verdict as a clause."""
        return {
            Verdict.FRESH: "fresh",
            Verdict.NEWER: "written in a newer format",
            Verdict.SPEC: "what is asked for has changed since",
            Verdict.CHANNEL: "the channel lacks or differs from a locked package",
            Verdict.BASE: "a base package can no longer be had",
            Verdict.RENDERING: "a rendering does not say what the lock says",
        }[self]


@dataclass(frozen=True)
class Stale:
    """One reason why a lock is not fresh; ``remedy`` is a clause."""

    verdict: Verdict
    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.where}: {self.what}; {self.remedy}"

    def as_dict(self) -> dict[str, object]:
        """Return the reason as plain data."""
        return {**asdict(self), "verdict": self.verdict.name.lower()}


@dataclass(frozen=True)
class Check:
    """The result of checking a lock."""

    verdict: Verdict
    reasons: tuple[Stale, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {
            "verdict": self.verdict.name.lower(),
            "exit_code": self.verdict.value,
            "reasons": [reason.as_dict() for reason in self.reasons],
        }


def check_lock(workspace: Workspace, profile: Profile, path: Path | None = None) -> Check:
    """Compare a lock with stack.toml, the channel, the base packages, and its own renderings.

    ``path`` is a conda-lock.yml, by default the profile's. Packages that have not changed since
    the channel was last published are not read again. Raises LockError when there is no lock or
    it is not as `assembler lock` wrote it.
    """
    path = path or workspace.lock_file(profile)
    try:
        lock = read_lock(path)
    except NewerLockError as error:
        return Check(Verdict.NEWER, (Stale(Verdict.NEWER, str(path), error.saw, error.remedy),))
    reasons = (
        *_spec(workspace, profile, lock),
        *_channel(workspace, lock),
        *_base(workspace, profile, lock),
        *_renderings(lock, path.parent if path.is_file() else path),
    )
    found = {reason.verdict for reason in reasons}
    verdict = next((verdict for verdict in Verdict if verdict in found), Verdict.FRESH)
    return Check(verdict, reasons)


def line_of(text: str, section: str, key: str) -> int | None:
    """Return the line (from 1) of a key in a section of a TOML text, or of the section itself."""
    found = None
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            current = match[1]
            if current == section:
                found = found or number
        elif current == section and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
            return number
    return found


def _spec(workspace: Workspace, profile: Profile, lock: Lock) -> Iterator[Stale]:
    base = f"profile.{profile.name}"
    image = f"{base}.image.base"
    roots = {profile.root, profile.root_without_source}
    try:
        records = read_records(workspace.channel)
    except ChannelError:
        records = ()
    if records:
        roots = {choose_root(records, profile)}
    asked = [spec for spec in lock.specs if spec.split()[0] != SELECTOR]
    names = tuple(sorted(set(profile.image.base.packages)))
    root_key = "root" if profile.root in roots else "root_without_source"
    pairs: list[tuple[str, str, object, object]] = [
        (base, "platform", lock.platform, profile.platform),
        (base, "channels", lock.channels, (LOCAL_CHANNEL, *profile.channels)),
        (image, "suite", lock.suite, profile.image.base.suite),
        (image, "packages", lock.base_names, names),
        (base, "name", lock.profile, profile.name),
    ]
    if len(asked) != 1 or asked[0] not in roots:
        pairs.append((base, root_key, tuple(asked), tuple(sorted(roots))))
    pairs += [
        (f"{base}.virtual_packages", name, *pair)
        for name in sorted({*lock.virtual_packages, *profile.virtual_packages})
        for pair in [(lock.virtual_packages.get(name), profile.virtual_packages.get(name))]
    ]
    text = None
    for section, key, old, new in pairs:
        if old == new:
            continue
        if text is None:
            text = (workspace.root / "stack.toml").read_text(encoding="utf-8")
        line = line_of(text, section, key)
        where = f"stack.toml:{line}" if line else "stack.toml"
        yield Stale(
            Verdict.SPEC,
            where,
            f"{key} is {_show(new)}, the lock was made for {_show(old)}",
            "run `assembler lock`",
        )


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)


def _channel(workspace: Workspace, lock: Lock) -> Iterator[Stale]:
    for package, what in check_packages(lock, workspace.channel, trust_stamps=True):
        if package.url is not None and what == "is not there":
            continue
        remedy = "run `assembler build`, then `assembler lock` if it says so again"
        if what.startswith("has "):
            # A build takes a package of this name for the one it would make.
            place = workspace.channel / package.path
            if place.is_relative_to(workspace.root):
                place = place.relative_to(workspace.root)
            again = "mirror" if package.url is not None else "build"
            remedy = f"delete {place} and run `assembler {again}`"
        yield Stale(Verdict.CHANNEL, package.path, what, remedy)


def _base(workspace: Workspace, profile: Profile, lock: Lock) -> Iterator[Stale]:
    for pin in vanished(lock.base, Store(workspace.store), archive_folder(workspace, profile)):
        yield Stale(
            Verdict.BASE,
            pin.name,
            f"Debian {lock.suite} no longer has {pin.version}, and the store has no copy",
            "run `assembler lock` to pin its successor",
        )


def says_the_same(data: bytes, rendered: bytes) -> bool:
    r"""Tell whether a file says what the lock renders to, as conda-lock.yml is read.

    Comment lines, blank lines and space at line ends that somebody added say nothing; a digest of
    the content, never of the file, names a lock in images and provenance.

    >>> says_the_same(b"# mine\n\na: 1  \n", b"a: 1\n"), says_the_same(b"a: 1 # x", b"a: 1")
    (True, False)
    """
    if data == rendered:
        return True
    if b"\r" in data:
        return False
    wanted = [line for line in rendered.split(b"\n") if line]
    known = set(wanted)
    lines = [line.rstrip(b" \t") for line in data.split(b"\n")]
    said = [
        line for line in lines if line in known or (line and not line.lstrip().startswith(b"#"))
    ]
    return said == wanted


def _renderings(lock: Lock, folder: Path) -> Iterator[Stale]:
    for name, data in render_beside(lock).items():
        try:
            same = says_the_same((folder / name).read_bytes(), data)
            what = "" if same else "is not what the lock renders to"
        except FileNotFoundError:
            what = "is not there"
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
        if what:
            yield Stale(Verdict.RENDERING, name, what, "run `assembler lock`")
