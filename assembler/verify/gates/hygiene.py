"""Gate ``hygiene``: modes, links, names, caches, and traces of the machine it was made on.

Each check is a generator from the tree to findings; metadata comes from the archive, so that bits
which the scratch copy cannot carry (setuid, owners, times) are seen.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from assembler.verify.content import find_content
from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.owners import owners
from assembler.verify.policy import Policy, matches
from assembler.verify.tree import Entry, Tree

SETUID, SETGID, STICKY, WORLD_WRITE = 0o4000, 0o2000, 0o1000, 0o002
CACHES = (
    "*/.cache/*", ".cache/*", "*/__pycache__/*.pyc.[0-9]*", "var/cache/apt/archives/*.deb",
    "var/lib/apt/lists/*_Packages*", "*/pkgs/cache/*.json", "*/CACHEDIR.TAG", "CACHEDIR.TAG",
    "*.whl", "*.conda", "*/pip-*-unpack*", "*/.pytest_cache/*", "*/.ruff_cache/*",
    "*/.mypy_cache/*", "*.orig", "*.rej", "*/.DS_Store", "*/core.[0-9]*",
)  # fmt: skip
LINK_SCRIPTS = tuple(
    f"{start}bin/.*-{moment}.sh"
    for start in ("", "*/")
    for moment in ("post-link", "pre-link", "pre-unlink")
)
EXISTS_AT_RUN_TIME = ("dev/", "proc/", "sys/", "run/", "tmp/")


def check(tree: Tree, policy: Policy) -> GateResult:
    """Return what does not belong in the tree, or has the wrong mode, name or owner."""
    findings = [
        finding
        for entry in tree.entries.values()
        for finding in (*_modes(tree, entry), *_names(entry), *_links(tree, entry))
    ]
    findings += [*_case_clashes(tree), *_two_owners(tree), *find_content(tree, policy.host_paths)]
    findings.sort(key=lambda finding: (finding.id, finding.subject))
    return GateResult.of("hygiene", findings, examined=len(tree.entries), unit="paths")


def _modes(tree: Tree, entry: Entry) -> Iterator[Finding]:
    if entry.kind == "symlink":
        return
    if entry.kind == "other":
        yield Finding(
            id="hygiene/special-file",
            subject=entry.path,
            what="is a device, pipe or socket",
            remedy="leave it out: engines make their own /dev",
        )
    if entry.kind == "file" and entry.mode & (SETUID | SETGID):
        word = "setuid" if entry.mode & SETUID else "setgid"
        yield Finding(
            id="hygiene/setuid",
            subject=entry.path,
            what=f"is {word} (mode {entry.mode:04o})",
            remedy="clear the bit: nothing in a clean image changes users",
        )
    sticky = entry.kind == "directory" and entry.mode & STICKY
    if entry.mode & WORLD_WRITE and not sticky:
        yield Finding(
            id="hygiene/world-writable",
            subject=entry.path,
            what=f"may be written by everybody (mode {entry.mode:04o})",
            remedy="give files mode 0644 or 0755, folders 0755 (/tmp 1777)",
        )
    user = tree.config.ids if tree.config is not None else None
    if user is not None and not _readable(entry, user):
        yield Finding(
            id="hygiene/unreadable",
            severity=Severity.WARNING,
            subject=entry.path,
            what=f"cannot be read by the image's user {user[0]} (mode {entry.mode:04o}, owner "
            f"{entry.uid}:{entry.gid})",
            remedy="give files mode 0644 or 0755",
        )


def _readable(entry: Entry, user: tuple[int, int]) -> bool:
    wanted = 0o5 if entry.kind == "directory" else 0o4
    if entry.uid == user[0]:
        return entry.mode >> 6 & wanted == wanted
    if entry.gid == user[1]:
        return entry.mode >> 3 & wanted == wanted
    return entry.mode & wanted == wanted


def _names(entry: Entry) -> Iterator[Finding]:
    if entry.name.startswith(".wh."):
        yield Finding(
            id="hygiene/whiteout-name",
            subject=entry.path,
            what="has a name that image layers keep for deletions: it would vanish",
            remedy="rename or leave it out",
        )
    if any(ord(letter) < 32 or 0xDC80 <= ord(letter) <= 0xDCFF for letter in entry.path):
        yield Finding(
            id="hygiene/odd-name",
            severity=Severity.WARNING,
            subject=entry.path.encode("unicode_escape").decode(),
            what="has control characters or bytes that are not UTF-8 in its name",
            remedy="rename it: tools disagree on such names",
        )
    if entry.kind == "file" and matches(entry.path, CACHES):
        yield Finding(
            id="hygiene/cache",
            subject=entry.path,
            what="is a cache, or a left-over of making the image",
            remedy="leave it out",
        )
    if matches(entry.path, LINK_SCRIPTS):
        yield Finding(
            id="hygiene/link-script",
            severity=Severity.WARNING,
            subject=entry.path,
            what="is a link script, which installers of the rattler family do not run",
            remedy="do at build time what it does",
        )


def _links(tree: Tree, entry: Entry) -> Iterator[Finding]:
    if entry.target is None:
        return
    folder = posixpath.dirname(entry.path)
    absolute = entry.target.startswith("/")
    joined = posixpath.normpath(
        entry.target.lstrip("/") if absolute else posixpath.join(folder, entry.target)
    )
    package = tree.kind in ("conda", "wheel")
    if (package and absolute) or (not absolute and joined.startswith("..")):
        yield Finding(
            id="hygiene/escaping-link",
            subject=entry.path,
            what=f"is a link to {entry.target}, outside of {'the package' if package else '/'}",
            remedy="make it relative and keep it inside",
        )
    elif not tree.exists(entry.path) and not f"{joined}/".startswith(EXISTS_AT_RUN_TIME):
        # What a package's link leads to may be in a package that it depends on.
        yield Finding(
            id="hygiene/dangling-link",
            severity=Severity.WARNING if package else Severity.ERROR,
            subject=entry.path,
            what=f"is a link to {entry.target}, which is not there",
            remedy="leave the link out with its target, or add the package that has the target",
        )


def _case_clashes(tree: Tree) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for path in sorted(tree.entries):
        folded = path.casefold()
        first = seen.setdefault(folded, path)
        if first != path and posixpath.dirname(first) == posixpath.dirname(path):
            yield Finding(
                id="hygiene/case-clash",
                severity=Severity.WARNING,
                subject=path,
                what=f"differs from {posixpath.basename(first)} in case alone: one of them is lost "
                "where file names ignore case",
                remedy="leave one of them out if nobody needs both",
            )


def _two_owners(tree: Tree) -> Iterator[Finding]:
    if tree.kind in ("conda", "wheel"):
        return
    for path, packages in owners(tree).items():
        if len(packages) > 1:
            yield Finding(
                id="hygiene/two-owners",
                subject=path,
                what=f"belongs to {' and '.join(packages)}: which one's bytes these are depends on "
                "the order of unpacking",
                remedy="leave it out of all packages but one",
            )
