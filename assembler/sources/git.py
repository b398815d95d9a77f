"""Git as these sources need it: commits fetched by hash, trees listed, blobs read, versions told.

The user's own git configuration holds (``insteadOf``, credential helpers, proxies); branches and
tags are never followed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath

from packaging.version import InvalidVersion, Version

from assembler.digest import sha256_bytes
from assembler.errors import MissingToolError, SourceUnavailableError

GITLINK = "160000"
SYMLINK = "120000"
ABANDONED = 24 * 3600  # seconds after which a scratch file of git's has no writer any more
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")
_LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")


@dataclass(frozen=True)
class Entry:
    """One line of a tree: git's mode in octal digits, object id, path from the top."""

    mode: str
    object_id: str
    path: str


class GitError(Exception):
    """git ended with an error; the text is its last line without credentials."""


def public(url: str) -> str:
    """Return a repository's address without user and password."""
    return _USER_INFO.sub("", url)


class Repository:
    """A work tree or bare repository at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [
            "git",
            # A checkout of another user is only read here, never run.
            *("-c", "safe.directory=*"),
            *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.quotePath=false"),
            *("-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false"),
            *("-C", str(self.folder)),
            *arguments,
        ]

    @staticmethod
    def _environment() -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key not in _LOCAL}
        return environment | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}

    def run(self, *arguments: str) -> bytes:
        """Run git here and return its output; GitError when it fails."""
        try:
            result = subprocess.run(
                self._command(arguments),
                env=self._environment(),
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise MissingToolError(
                "git is not on this machine, and a source tree comes from a repository",
                remedy="install git",
            ) from None
        if result.returncode:
            words = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise GitError(public(words) or f"git {arguments[0]} failed")
        return result.stdout

    def text(self, *arguments: str) -> str:
        """Run git here and return its output as one stripped string."""
        return self.run(*arguments).decode(errors="surrogateescape").strip()

    def has(self, commit: str) -> bool:
        """Tell whether the commit and its tree are here."""
        try:
            self.run("cat-file", "-e", f"{commit}^{{tree}}")
        except GitError:
            return False
        return True

    def tree(self, commit: str) -> tuple[Entry, ...]:
        """Return every blob and submodule of a commit, sorted by path."""
        entries = []
        for line in self.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
            if line:
                head, _, path = line.decode(errors="surrogateescape").partition("\t")
                mode, _, object_id = head.split(" ")
                entries.append(Entry(mode, object_id, path))
        return tuple(sorted(entries, key=lambda entry: os.fsencode(entry.path)))

    @property
    def shallow(self) -> bool:
        """Tell whether history is cut off."""
        return self.text("rev-parse", "--is-shallow-repository") == "true"

    def time(self, commit: str) -> int:
        """Return the commit's own time in seconds since 1970."""
        return int(self.text("show", "-s", "--format=%ct", commit))

    def blobs(self, object_ids: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of these objects, unfiltered, one after the other."""
        with subprocess.Popen(
            self._command(["cat-file", "--batch"]),
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdin
            assert process.stdout
            for object_id in object_ids:
                process.stdin.write(f"{object_id}\n".encode())
                process.stdin.flush()
                header = process.stdout.readline().split()
                if len(header) != 3:
                    raise GitError(f"object {object_id} is not in the repository")
                data = process.stdout.read(int(header[2]))
                process.stdout.read(1)
                yield data

    def submodules(self, commit: str) -> dict[str, tuple[str, str]]:
        """Return path → (name, URL) of the submodules that a commit's .gitmodules describes."""
        try:
            text = self.run(
                "config",
                "--blob",
                f"{commit}:.gitmodules",
                "--null",
                "--get-regexp",
                r"\.(path|url)$",
            )
        except GitError:
            return {}
        values: dict[str, dict[str, str]] = {}
        for item in text.decode(errors="surrogateescape").split("\0"):
            key, newline, value = item.partition("\n")
            if newline:
                name, _, what = key.removeprefix("submodule.").rpartition(".")
                values.setdefault(name, {})[what] = value
        return {
            one["path"]: (name, one["url"])
            for name, one in values.items()
            if "path" in one and "url" in one
        }

    def version(self, commit: str, *, dirty: str = "") -> str:
        """Return the version setuptools-scm would give, with a stable mark for a dirty tree.

        The nearest version tag, or the next one's ``.devN+g<hash>`` after it; without any tag
        ``0.1.devN+g<hash>``. ``dirty`` goes into the local part (setuptools-scm puts the date
        there, which would make every day's package another one).
        """
        node = f"g{commit[:9]}" + (f".{dirty}" if dirty else "")
        try:
            words = self.text(
                "describe", "--tags", "--long", "--abbrev=40", "--match", "*[0-9]*", commit
            )
        except GitError:
            return f"0.1.dev{self.text('rev-list', '--count', commit)}+{node}"
        tag, distance, _ = words.rsplit("-", 2)
        version = tag_version(tag)
        if version is None:
            return f"0.1.dev{self.text('rev-list', '--count', commit)}+{node}"
        if distance == "0" and not dirty:
            return str(version)
        return f"{next_version(version)}.dev{distance}+{node}"


def tag_version(tag: str) -> Version | None:
    """Return the version a tag such as ``v0.1.6`` or ``atom-0.1.6rc1`` names, or None."""
    match = re.search(r"\d.*$", tag)
    try:
        return Version(match.group()) if match else None
    except InvalidVersion:
        return None


def next_version(version: Version) -> str:
    """Return the version whose development builds come after ``version``: 0.1.6 → 0.1.7."""
    public_part = str(version.public).partition(".dev")[0]
    if version.dev is not None:
        return public_part
    head, last = re.fullmatch(r"(.*?)(\d+)", public_part, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{head}{int(last) + 1}"


def submodule_url(parent: str, url: str) -> str:
    """Return a submodule's address, relative ones resolved against the parent's."""
    if not url.startswith(("./", "../")):
        return url
    base, slash, path = parent.rstrip("/").partition("://")
    if not slash:
        return normpath(f"{parent.rstrip('/')}/{url}")
    host, _, rest = path.partition("/")
    return f"{base}://{host}{normpath(f'/{rest}/{url}')}"


def fetched(root: Path, url: str, commit: str, *, history: bool = False) -> Repository:
    """Return a repository below ``root`` that holds the commit, fetched if need be.

    With ``history`` its ancestors and the tags come too where the repository gives them, as version
    numbers need them. Raises SourceUnavailableError when the commit cannot be had.
    """
    from filelock import FileLock

    folder = root / f"{sha256_bytes(url.encode())[:16]}.git"
    repository = Repository(folder)
    if not shutil.which("git"):
        raise MissingToolError("git is not on this machine", remedy="install git")
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        _sweep(folder)
        if not (folder / "HEAD").exists():
            folder.mkdir(exist_ok=True)
            repository.run("init", "--quiet", "--bare")
        shallow = (folder / "shallow").exists()
        if repository.has(commit) and not (history and shallow):
            return repository
        trouble = ""
        for step in _steps(url, commit, history=history, shallow=shallow):
            try:
                repository.run("fetch", "--quiet", "--no-recurse-submodules", "--force", *step)
            except GitError as error:
                trouble = str(error)
                continue
            if repository.has(commit):
                return repository
        if repository.has(commit):
            return repository  # without the history that was hoped for
    raise SourceUnavailableError(
        f"commit {commit} could not be had from {public(url)} ({trouble or 'it is not there'})",
        remedy="check the address, the commit and the network (--source NAME= forgets it)",
    )


def _sweep(folder: Path) -> None:
    """Remove what a killed git left a day ago: unfinished packs, and locks that stop others."""
    old = time.time() - ABANDONED
    for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*"):
        for path in folder.glob(pattern):
            with suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()


def _steps(url: str, commit: str, *, history: bool, shallow: bool) -> Iterator[list[str]]:
    everything = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    if not history:
        yield ["--depth=1", "--no-tags", "--", url, commit]
    # The repository asked may lack history itself (a checkout of depth 1).
    whole = ["--update-shallow", *(["--unshallow"] if shallow else [])]
    yield [*whole, "--", url, *everything, commit]
    # Servers that give no commit by hash still give it as an ancestor of a branch.
    yield [*whole, "--", url, *everything]
    if history and not shallow:
        # A repository that cannot give its whole history may still give the commit.
        yield ["--depth=1", "--no-tags", "--", url, commit]
