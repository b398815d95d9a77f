"""Source trees → deterministic tar files: the same commit gives the same bytes everywhere.

A tar holds the files alone, below one folder named like the source; the version, which depends on
tags, travels in the pin (recipes get it as a variant and hand it to setuptools-scm).
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assembler.digest import sha256_file
from assembler.errors import ConfigError, SourceUnavailableError
from assembler.progress import Progress
from assembler.sources.git import (
    GITLINK,
    SYMLINK,
    Entry,
    GitError,
    Repository,
    fetched,
    public,
    submodule_url,
)
from assembler.sources.given import GitRef, Given
from assembler.sources.pins import Pin
from assembler.sources.store import Store, mismatch, room

# Files without a commit of their own: the first time that zip archives can express.
NO_TIME = 315532800
FORMAT = 1

_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class Member:
    """One file of a tree: path from the top, git's mode, bytes (a link's target for links)."""

    path: str
    mode: str
    data: bytes


def write_tar(path: Path, name: str, members: Iterable[Member], *, time: int) -> None:
    """Write members, which come sorted, below the folder ``name``; a function of its arguments."""
    with (
        path.open("wb") as stream,
        # The GNU format spells a member in one way, whatever Python's release.
        tarfile.open(
            fileobj=stream,
            mode="w",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar,
    ):
        for member in members:
            info = tarfile.TarInfo(f"{name}/{member.path}")
            info.mtime = time
            info.mode = 0o755 if member.mode == "100755" else 0o644
            if member.mode == GITLINK:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            elif member.mode == SYMLINK:
                info.type, info.mode = tarfile.SYMTYPE, 0o777
                info.linkname = member.data.decode(errors="surrogateescape")
                tar.addfile(info)
            else:
                info.size = len(member.data)
                tar.addfile(info, io.BytesIO(member.data))


def commit_members(
    repository: Repository,
    commit: str,
    submodule: Callable[[Entry], tuple[Repository, str] | None],
) -> Iterator[Member]:
    """Yield a commit's files; ``submodule`` says where those of a submodule are, or None."""
    entries = repository.tree(commit)
    blobs = repository.blobs([one.object_id for one in entries if one.mode != GITLINK])
    for entry in entries:
        if entry.mode != GITLINK:
            yield Member(entry.path, entry.mode, next(blobs))
            continue
        yield Member(entry.path, GITLINK, b"")
        inside = submodule(entry)
        if inside:

            def deeper(one: Entry, above: str = entry.path) -> tuple[Repository, str] | None:
                return submodule(Entry(one.mode, one.object_id, f"{above}/{one.path}"))

            for member in commit_members(*inside, deeper):
                yield Member(f"{entry.path}/{member.path}", member.mode, member.data)


class _Submodules:
    """Finds the named submodules of a pinned commit at their recorded commits."""

    def __init__(self, root: Path, top: tuple[Repository, str, str], named: Collection[str]):
        self._root = root
        self._named = set(named)
        self.unused = set(named)
        # path of a repository within the tree -> (repository, its URL, commit)
        self._seen = {"": top}

    def __call__(self, entry: Entry) -> tuple[Repository, str] | None:
        above = max(
            (path for path in self._seen if not path or entry.path.startswith(f"{path}/")), key=len
        )
        repository, url, commit = self._seen[above]
        inner = entry.path[len(above) :].lstrip("/")
        name, address = repository.submodules(commit).get(inner, ("", ""))
        known = {entry.path, name} & self._named
        if not known or not address:
            return None
        self.unused -= known
        address = submodule_url(url, address)
        found = fetched(self._root, address, entry.object_id)
        self._seen[entry.path] = (found, address, entry.object_id)
        return found, entry.object_id


def fetch_pinned(pin: Pin, store: Store) -> None:
    """Bring a pin of kind git into the store: its commit with the named submodules, as a tar."""
    assert pin.url
    assert pin.commit
    made = _tar_of_commit(store, pin.name, pin.url, pin.commit, pin.submodules)
    found = sha256_file(made)
    if found != pin.sha256:
        made.unlink()
        raise mismatch(pin.file, pin.sha256, found)
    store.add(made, pin.sha256, name=pin.file, move=True)


def commit_tar(
    store: Store, name: str, url: str, commit: str, submodules: Collection[str] = ()
) -> tuple[str, int]:
    """Make a commit's tar in the store and return its SHA-256 and size; for new pins."""
    made = _tar_of_commit(store, name, url, commit, submodules)
    return _keep(store, made)


def _keep(store: Store, made: Path) -> tuple[str, int]:
    sha256, size = sha256_file(made), made.stat().st_size
    store.add(made, sha256, move=True)
    return sha256, size


def _tar_of_commit(
    store: Store, name: str, url: str, commit: str, submodules: Collection[str]
) -> Path:
    root = store.root / "git"
    repository = fetched(root, url, commit)
    finder = _Submodules(root, (repository, url, commit), submodules)
    made = store.reserve("tree")
    with room(name, made):
        try:
            members = commit_members(repository, commit, finder)
            write_tar(made, name, members, time=repository.time(commit))
        except GitError as error:
            raise SourceUnavailableError(
                f"{name} could not be read from {public(url)} ({error})",
                remedy="run it again, and remove the store's git folder if that does not help",
            ) from None
        if finder.unused:
            raise ConfigError(
                f"{name} at {commit} has no submodule {', '.join(sorted(finder.unused))}",
                remedy="name submodules by their path in the repository",
            )
    return made


def snapshot(
    name: str, given: Given, store: Store, progress: Progress, *, offline: bool = False
) -> Pin:
    """Return the pin of a source tree that the user gave, its tar being in the store.

    A clean checkout and the URL of its commit give the same bytes. Changed files are taken as they
    are and show in the version; untracked ones are left out, which is said.
    """
    if isinstance(given, GitRef):
        return _snapshot_ref(name, given, store, progress, offline=offline)
    if not given.is_dir():
        raise ConfigError(
            f"the source tree {given} of {name} is not there any more",
            remedy=f"give it again with --source {name}=PATH, or forget it with --source {name}=",
        )
    repository = Repository(given)
    try:
        inside = repository.text("rev-parse", "--is-inside-work-tree") == "true"
        commit = repository.text("rev-parse", "--verify", "HEAD^{commit}") if inside else ""
        tracked = bool(commit) and bool(repository.run("ls-files", "--cached", "-z"))
    except GitError:
        tracked = False
    if not tracked:
        return _snapshot_folder(name, given, store)
    return _snapshot_checkout(name, repository, commit, store, progress)


def _pin(name: str, version: str, file: str, kept: tuple[str, int], **more: str) -> Pin:
    data = {"kind": "path", "name": name, "version": version, "file": file}
    return Pin.model_validate(data | {"sha256": kept[0], "size": kept[1]} | more)


def _remembered(store: Store, name: str, commit: str) -> tuple[Path, tuple[str, int, str] | None]:
    """Return where a commit's tar is noted, and hash, size and version if that is still true."""
    note = store.root / "trees" / f"{name}-{commit}-{FORMAT}.json"
    try:
        sha256, size, version = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return note, None
    return note, (sha256, size, version) if store.has(sha256, size) else None


def _note(store: Store, note: Path, sha256: str, size: int, version: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    beside = store.reserve("note")
    beside.write_text(json.dumps([sha256, size, version]), encoding="utf-8")
    beside.replace(note)


def _snapshot_ref(
    name: str, given: GitRef, store: Store, progress: Progress, *, offline: bool
) -> Pin:
    note, known = _remembered(store, name, given.commit)
    if known is None:
        if offline:
            raise SourceUnavailableError(
                f"{name} at {given.commit} is not in the store",
                remedy="run it once with a network, or give a checkout with --source",
            )
        repository = fetched(store.root / "git", given.url, given.commit, history=True)
        made = _tar_of_commit(store, name, given.url, given.commit, ())
        version = repository.version(given.commit)
        if repository.shallow:
            progress.say(
                f"{name}: {public(given.url)} gave no history, so its version is {version}; "
                "give a checkout with tags for the true one"
            )
        known = (*_keep(store, made), version)
        _note(store, note, *known)
    sha256, size, version = known
    file = f"{name}-{given.commit}.tar"
    more = {"commit": given.commit, "url": public(given.url)}
    return _pin(name, version, file, (sha256, size), **more)


def _snapshot_checkout(
    name: str, repository: Repository, commit: str, store: Store, progress: Progress
) -> Pin:
    changed = bool(repository.run("status", "--porcelain", "--untracked-files=no", "--", "."))
    others = repository.run("ls-files", "-z", "--others", "--exclude-standard").count(b"\0")
    if others:
        progress.say(
            f"{name}: {others} untracked file{'s' if others > 1 else ''} in {repository.folder} "
            "left out (`git add` takes them in)"
        )
    listed = repository.run("ls-files", "-z", "--stage").split(b"\0")
    plain = not any(line.startswith(GITLINK.encode()) for line in listed)
    prefix = repository.text("rev-parse", "--show-prefix")
    made = store.reserve("tree")
    if not changed and plain and not prefix:
        note, known = _remembered(store, name, commit)
        version = repository.version(commit)
        if known is None:
            with room(name, made):
                members = commit_members(repository, commit, lambda _: None)
                write_tar(made, name, members, time=repository.time(commit))
            known = (*_keep(store, made), version)
        if known[2] != version or not note.exists():
            _note(store, note, known[0], known[1], version)
        return _pin(name, version, f"{name}-{commit}.tar", known[:2], commit=commit)
    paths = repository.run("ls-files", "-z", "--cached", "--recurse-submodules").split(b"\0")
    with room(name, made):
        members = _worktree_members(repository.folder, {os.fsdecode(one) for one in paths if one})
        write_tar(made, name, members, time=repository.time(commit))
    kept = _keep(store, made)
    dirty = f"dirty{kept[0][:8]}" if changed else ""
    version = repository.version(commit, dirty=dirty)
    file = f"{name}-{commit}{'-dirty' if changed else ''}.tar"
    return _pin(name, version, file, kept, commit=commit)


def _worktree_members(folder: Path, paths: Iterable[str]) -> Iterator[Member]:
    """Yield the files of a folder as they are; those that are gone or no files are passed by."""
    for path in sorted(paths, key=os.fsencode):
        there = folder / path
        if there.is_symlink():
            yield Member(path, SYMLINK, os.fsencode(there.readlink()))
        elif there.is_file():
            mode = "100755" if there.stat().st_mode & 0o100 else "100644"
            yield Member(path, mode, there.read_bytes())


def _snapshot_folder(name: str, folder: Path, store: Store) -> Pin:
    paths: list[str] = []
    for top, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in _NEVER]
        links = [one for one in folders if (Path(top) / one).is_symlink()]
        paths += [str((Path(top) / one).relative_to(folder)) for one in (*files, *links)]
    wanted = [one for one in paths if not one.endswith(".pyc")]
    if not wanted:
        raise ConfigError(f"{folder} has no files", remedy=f"give {name}'s source tree")
    made = store.reserve("tree")
    with room(name, made):
        write_tar(made, name, _worktree_members(folder, wanted), time=NO_TIME)
    kept = _keep(store, made)
    version = declared_version(folder) or f"0.0.0+tree{kept[0][:8]}"
    return _pin(name, version, f"{name}-tree-{kept[0][:12]}.tar", kept)


def declared_version(folder: Path) -> str | None:
    """Return the version that an unpacked tree says of itself (PKG-INFO or pyproject.toml)."""
    try:
        text = (folder / "PKG-INFO").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^Version: (\S+)$", text, re.MULTILINE)
        if match:
            return match[1]
    except OSError:
        pass
    try:
        data = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        version = data.get("project", {}).get("version")
    except (OSError, ValueError):
        return None
    return version if isinstance(version, str) and version else None
