"""Source trees from git and from folders: the same bytes for the same commit, and true versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from assembler.digest import sha256_file
from assembler.errors import ConfigError, HashMismatchError, SourceUnavailableError
from assembler.progress import SilentProgress
from assembler.sources.given import GitRef
from assembler.sources.pins import Pin
from assembler.sources.store import Store
from assembler.sources.trees import commit_tar, fetch_pinned, snapshot

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not on this machine")

Git = Callable[..., str]


class Heard(SilentProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Git:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.org")
        monkeypatch.setenv(f"GIT_{who}_DATE", "1750000000 +0000")

    def run(folder: Path, *arguments: str) -> str:
        command = ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run(tmp_path, "config", "--global", "protocol.file.allow", "always")
    run(tmp_path, "config", "--global", "init.defaultBranch", "main")
    return run


@pytest.fixture
def checkout(tmp_path: Path, git: Git) -> Path:
    """A checkout two commits after the tag v0.1.6."""
    folder = tmp_path / "my checkout"
    (folder / "atom").mkdir(parents=True)
    (folder / "atom" / "__init__.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "grüße.txt").write_text("hallo\n")
    (folder / "link").symlink_to("run.sh")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "--quiet")
    commit(git, folder, "first")
    git(folder, "tag", "v0.1.6")
    for text in ("two", "three"):
        (folder / "atom" / "more.py").write_text(f"# {text}\n")
        commit(git, folder, text)
    return folder


def commit(git: Git, folder: Path, words: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", words)
    return git(folder, "rev-parse", "HEAD")


def head(git: Git, folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_a_clean_checkout_and_its_commit_are_the_same(
    tmp_path: Path, git: Git, checkout: Path
) -> None:
    where = head(git, checkout)
    from_path = snapshot("atom", checkout, Store(tmp_path / "a"), SilentProgress())
    store = Store(tmp_path / "b")
    from_url = snapshot("atom", GitRef(str(checkout), where), store, SilentProgress())
    assert from_path.sha256 == from_url.sha256
    assert from_path.version == from_url.version == f"0.1.7.dev2+g{where[:9]}"
    assert from_path.file == f"atom-{where}.tar"
    with tarfile.open(store.path(from_url.sha256)) as tar:
        members = {one.name: one for one in tar}
    assert sorted(members) == sorted(
        f"atom/{name}"
        for name in (
            ".gitignore",
            "atom/__init__.py",
            "atom/more.py",
            "grüße.txt",
            "link",
            "run.sh",
        )
    )
    assert members["atom/run.sh"].mode == 0o755
    assert members["atom/link"].linkname == "run.sh"
    assert {(one.mtime, one.uid, one.uname) for one in members.values()} == {(1750000000, 0, "")}


def test_the_bytes_do_not_depend_on_the_machine(
    tmp_path: Path, git: Git, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot("atom", checkout, Store(tmp_path / "a"), SilentProgress())
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "--quiet", "--no-tags", str(checkout), str(copy))
    os.utime(copy / "run.sh", (1, 1))
    old = os.umask(0o077)
    try:
        second = snapshot("atom", copy, Store(tmp_path / "b"), SilentProgress())
    finally:
        os.umask(old)
    assert first.sha256 == second.sha256
    # Without tags the version can only count commits; the bytes stay the same.
    assert second.version == f"0.1.dev3+g{head(git, copy)[:9]}"


def test_a_known_commit_needs_no_repository(tmp_path: Path, git: Git, checkout: Path) -> None:
    store = Store(tmp_path / "store")
    given = GitRef(str(checkout), head(git, checkout))
    with pytest.raises(SourceUnavailableError, match="not in the store"):
        snapshot("atom", given, store, SilentProgress(), offline=True)
    pin = snapshot("atom", given, store, SilentProgress())
    shutil.rmtree(checkout)
    assert snapshot("atom", given, store, SilentProgress(), offline=True) == pin


def test_changes_are_taken_and_show(tmp_path: Path, git: Git, checkout: Path) -> None:
    store, heard = Store(tmp_path / "store"), Heard()
    clean = snapshot("atom", checkout, store, heard)
    (checkout / "atom" / "more.py").write_text("# changed\n")
    (checkout / "grüße.txt").unlink()
    (checkout / "notes.txt").write_text("untracked\n")
    (checkout / "x.log").write_text("ignored\n")
    pin = snapshot("atom", checkout, store, heard)
    assert pin.version.startswith(f"{clean.version}.dirty")
    assert "-dirty" in pin.file
    assert pin == snapshot("atom", checkout, store, heard)
    assert names(store.path(pin.sha256)) == [
        f"atom/{name}"
        for name in (".gitignore", "atom/__init__.py", "atom/more.py", "link", "run.sh")
    ]
    with tarfile.open(store.path(pin.sha256)) as tar:
        member = tar.extractfile("atom/atom/more.py")
        assert member
        assert member.read() == b"# changed\n"
    assert "1 untracked file" in heard.said[0]
    git(checkout, "add", "notes.txt")
    assert "atom/notes.txt" in names(store.path(snapshot("atom", checkout, store, heard).sha256))


def test_a_tag_is_its_own_version(tmp_path: Path, git: Git, checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "v0.1.6")
    store = Store(tmp_path / "store")
    assert snapshot("atom", checkout, store, SilentProgress()).version == "0.1.6"
    (checkout / "run.sh").write_text("changed\n")
    dirty = snapshot("atom", checkout, store, SilentProgress()).version
    assert dirty.startswith(f"0.1.7.dev0+g{head(git, checkout)[:9]}.dirty")


def test_an_unpacked_tree_is_taken_whole(tmp_path: Path, git: Git, checkout: Path) -> None:
    store = Store(tmp_path / "store")
    shutil.rmtree(checkout / ".git")
    (checkout / "atom" / "__pycache__").mkdir()
    (checkout / "atom" / "__pycache__" / "x.pyc").write_bytes(b"")
    pin = snapshot("atom", checkout, store, SilentProgress())
    assert pin.version == f"0.0.0+tree{pin.sha256[:8]}"
    assert not any("pycache" in name for name in names(store.path(pin.sha256)))
    (checkout / "pyproject.toml").write_text('[project]\nversion = "4.2"\n')
    assert snapshot("atom", checkout, store, SilentProgress()).version == "4.2"
    (checkout / "PKG-INFO").write_text("Metadata-Version: 2.1\nVersion: 4.3\n")
    assert snapshot("atom", checkout, store, SilentProgress()).version == "4.3"
    shutil.rmtree(checkout)
    with pytest.raises(ConfigError, match="not there any more"):
        snapshot("atom", checkout, store, SilentProgress())
    checkout.mkdir()
    with pytest.raises(ConfigError, match="has no files"):
        snapshot("atom", checkout, store, SilentProgress())


@pytest.fixture
def nested(tmp_path: Path, git: Git, checkout: Path) -> Path:
    """A repository with two submodules, by relative addresses."""
    top = tmp_path / "aiter"
    top.mkdir()
    git(top, "init", "--quiet")
    for name in ("ck", "spare"):
        library = tmp_path / name
        library.mkdir()
        git(library, "init", "--quiet")
        (library / f"{name}.h").write_text("//\n")
        commit(git, library, "library")
        git(top, "submodule", "--quiet", "add", f"../{name}", f"3rdparty/{name}")
    (top / "setup.py").write_text("")
    commit(git, top, "top")
    # The branch moves on; the recorded commit is what counts.
    (tmp_path / "ck" / "late.h").write_text("//\n")
    commit(git, tmp_path / "ck", "late")
    return top


def test_named_submodules_come_at_their_recorded_commits(
    tmp_path: Path, git: Git, nested: Path
) -> None:
    store, where = Store(tmp_path / "store"), head(git, nested)
    bare, _ = commit_tar(store, "aiter", str(nested), where)
    assert names(store.path(bare)) == [
        "aiter/.gitmodules",
        "aiter/3rdparty/ck",
        "aiter/3rdparty/spare",
        "aiter/setup.py",
    ]
    full, size = commit_tar(store, "aiter", str(nested), where, ("3rdparty/ck",))
    assert names(store.path(full)) == [
        "aiter/.gitmodules",
        "aiter/3rdparty/ck",
        "aiter/3rdparty/ck/ck.h",
        "aiter/3rdparty/spare",
        "aiter/setup.py",
    ]
    with pytest.raises(ConfigError, match="no submodule 3rdparty/mk"):
        commit_tar(store, "aiter", str(nested), where, ("3rdparty/mk",))
    pin = Pin(
        kind="git",
        name="aiter",
        version="0.1",
        file=f"aiter-{where}.tar",
        sha256=full,
        size=size,
        url=str(nested),
        commit=where,
        submodules=("3rdparty/ck",),
    )
    fresh = Store(tmp_path / "fresh")
    fetch_pinned(pin, fresh)
    assert sha256_file(fresh.path(full)) == full
    with pytest.raises(HashMismatchError, match=f"aiter-{where}"):
        fetch_pinned(pin.model_copy(update={"sha256": "0" * 64}), fresh)
    assert not list((fresh.root / "partial").iterdir())


def test_instead_of_holds(tmp_path: Path, git: Git, checkout: Path) -> None:
    git(tmp_path, "config", "--global", f"url.{tmp_path}/.insteadOf", "https://example.org/")
    (tmp_path / "plain").symlink_to(checkout)
    given = GitRef("https://example.org/plain", head(git, checkout))
    pin = snapshot("atom", given, Store(tmp_path / "store"), SilentProgress())
    assert pin.url == "https://example.org/plain"


def test_a_repository_without_history_is_enough(tmp_path: Path, git: Git, checkout: Path) -> None:
    full = snapshot("atom", checkout, Store(tmp_path / "a"), SilentProgress())
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{checkout}", str(shallow))
    heard, given = Heard(), GitRef(str(shallow), head(git, checkout))
    for _ in range(2):
        pin = snapshot("atom", given, Store(tmp_path / "b"), heard)
        assert pin.sha256 == full.sha256
        assert pin.version.startswith("0.1.dev1+g")
        assert len(heard.said) == 1
    assert "gave no history" in heard.said[0]


def test_a_commit_that_is_nowhere_is_said(tmp_path: Path, git: Git, checkout: Path) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(SourceUnavailableError, match="0123456789"):
        snapshot("atom", GitRef(str(checkout), "0123456789" * 4), store, SilentProgress())
    given = GitRef("http://me:hunter2@127.0.0.1:9/x", "0123456789" * 4)
    with pytest.raises(SourceUnavailableError) as caught:
        snapshot("atom", given, store, SilentProgress())
    assert "hunter2" not in str(caught.value)
