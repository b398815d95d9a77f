"""Is the lock fresh: each verdict has its exit code, its place and its remedy."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from assembler.channel.index import publish
from assembler.channel.location import state_folder
from assembler.digest import sha256_file
from assembler.errors import LockError
from assembler.lock.base import archive_folder
from assembler.lock.check import Check, Verdict, _channel, check_lock, line_of
from assembler.lock.files import read_lock, write_lock
from assembler.lock.make import make_lock, update_lock
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.workspace import Workspace
from tests import data_stack
from tests.tiny_packages import make_package

QUIET = SilentProgress()


def check(project: Workspace) -> Check:
    return check_lock(project, project.stack().select(None))


@pytest.fixture
def locked(project: Workspace, profile: Profile) -> Lock:
    return update_lock(project, profile, QUIET).lock


def edit_stack(project: Workspace, old: str, new: str) -> None:
    path = project.root / "stack.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_every_verdict_has_an_exit_code_of_its_own() -> None:
    assert len({verdict.value for verdict in Verdict}) == len(Verdict)
    assert all(verdict.words for verdict in Verdict)


def test_a_new_lock_is_fresh(project: Workspace, locked: Lock) -> None:
    assert check(project) == Check(Verdict.FRESH, ())


def test_it_is_fresh_with_a_choice_of_target_and_with_unrelated_packages(
    project: Workspace, profile: Profile, tmp_path: Path
) -> None:
    update_lock(project, profile, QUIET, gfx=["gfx942"])
    publish(project.channel, [make_package(tmp_path, "unrelated")])
    assert check(project).verdict is Verdict.FRESH


def test_it_is_fresh_without_the_channels_state(project: Workspace, locked: Lock) -> None:
    shutil.rmtree(state_folder(project.channel))
    assert check(project).verdict is Verdict.FRESH


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ('__glibc = "2.36"', '__glibc = "2.28"', "__glibc", "2.28, the lock was made for 2.36"),
        ('__glibc = "2.36"', '__glibc = "2.36"\n__x = "1"', "__x", "1, the lock .* for nothing"),
        ('__glibc = "2.36"\n', "", "[profile.data.virtual_packages]", "is nothing"),
        ('suite = "trixie"', 'suite = "bookworm"', "suite", "bookworm, the lock .* trixie"),
        ("packages = []", 'packages = ["libc6"]', "packages", "libc6, the lock .* for nothing"),
        ('_source = "atom-stack"', '_source = "zlib"', "root_without", "zlib, the lock .* atom-"),
        (
            'python = "3.11"',
            'python = "3.11"\nchannels = ["x"]',
            "channels",
            "CHANNEL, x, the lock",
        ),
    ],
)
def test_a_changed_request_names_the_line(
    project: Workspace, locked: Lock, old: str, new: str, key: str, words: str
) -> None:
    edit_stack(project, old, new)
    result = check(project)
    assert result.verdict is Verdict.SPEC
    (reason,) = result.reasons
    lines = (project.root / "stack.toml").read_text().splitlines()
    expected = next(number for number, line in enumerate(lines, 1) if line.startswith(key))
    assert reason.where == f"stack.toml:{expected}"
    assert re.search(words, reason.what)


def test_the_root_that_has_come_is_a_changed_request(
    project: Workspace, locked: Lock, tmp_path: Path
) -> None:
    publish(project.channel, [make_package(tmp_path, "atom", depends=["atom-stack"])])
    (reason,) = check(project).reasons
    assert reason.verdict is Verdict.SPEC
    assert "is atom, the lock was made for atom-stack" in reason.what


def test_another_hash_in_the_channel_shows_both(
    project: Workspace, locked: Lock, tmp_path: Path
) -> None:
    zlib = locked.by_name["zlib"]
    other = make_package(
        tmp_path, "zlib", "2.0", zlib.build, files={"share/zlib.txt": b"zlib 2.1"}, licence="Zlib"
    )
    publish(project.channel, [other])
    result = check(project)
    assert result.verdict is Verdict.CHANNEL
    (reason,) = result.reasons
    assert reason.where == zlib.path
    real = sha256_file(project.channel / zlib.path)
    assert reason.what == f"has sha256 {real}, the lock says {zlib.sha256}"
    # A build would take the file for its own: only its absence makes it build.
    assert reason.remedy == f"delete {project.channel / zlib.path} and run `assembler build`"
    inside = replace(project, root=project.channel.parent)
    (reason,) = _channel(inside, locked)
    assert reason.remedy == f"delete {project.channel.name}/{zlib.path} and run `assembler build`"


def test_a_package_changed_in_place_is_noticed(project: Workspace, locked: Lock) -> None:
    path = project.channel / locked.by_name["zlib"].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (reason,) = check(project).reasons
    assert locked.by_name["zlib"].sha256 in reason.what
    assert "has sha256" in reason.what


def test_a_pipe_in_a_packages_place_does_not_hold_the_check(
    project: Workspace, locked: Lock
) -> None:
    path = project.channel / locked.by_name["zlib"].path
    path.unlink()
    os.mkfifo(path)
    (reason,) = check(project).reasons
    assert reason.what == "is not a regular file"


def test_an_absent_package_and_an_absent_channel(project: Workspace, locked: Lock) -> None:
    (project.channel / locked.by_name["torch"].path).unlink()
    (reason,) = check(project).reasons
    assert (reason.verdict, reason.what) == (Verdict.CHANNEL, "is not there")
    shutil.rmtree(project.channel)
    assert check(project).verdict is Verdict.CHANNEL
    assert len(check(project).reasons) == len(locked.packages)


def test_a_newer_format_is_a_verdict_and_a_missing_lock_an_error(
    project: Workspace, profile: Profile, locked: Lock
) -> None:
    path = project.lock_file(profile)
    text = path.read_text()
    path.write_text(text.replace("assembler.format: '1'", "assembler.format: '7'"))
    result = check(project)
    assert result.verdict is Verdict.NEWER
    assert "format 7" in result.reasons[0].what
    path.unlink()
    with pytest.raises(LockError, match="there is no lock"):
        check(project)


def test_a_rendering_that_says_something_else(
    project: Workspace, profile: Profile, locked: Lock
) -> None:
    for name, old in (("explicit.txt", "zlib-2.0"), ("pixi.lock", locked.packages[0].sha256)):
        path = project.lock_folder(profile) / name
        text = path.read_text()
        path.write_text(text.replace(old, old[::-1]))
        result = check(project)
        assert result.verdict is Verdict.RENDERING
        assert [reason.where for reason in result.reasons] == [name]
        path.write_text(text)


@pytest.mark.parametrize(
    "name", ["pixi.lock", "explicit.txt", "environment.yml", "virtual-packages.yml"]
)
def test_every_rendering_is_there_and_whole(
    project: Workspace, profile: Profile, locked: Lock, name: str
) -> None:
    path = project.lock_folder(profile) / name
    data = path.read_bytes()
    for change, what in (
        (lambda: path.write_bytes(data + b"x\n"), "is not what the lock renders to"),
        (path.unlink, "is not there"),
        (path.mkdir, "cannot be read (Is a directory)"),
    ):
        change()
        result = check(project)
        assert result.verdict is Verdict.RENDERING
        assert [(reason.where, reason.what) for reason in result.reasons] == [(name, what)]
    path.rmdir()
    update_lock(project, profile, QUIET)
    assert path.read_bytes() == data
    assert check(project).verdict is Verdict.FRESH


@pytest.mark.parametrize(
    "name",
    ["conda-lock.yml", "pixi.lock", "explicit.txt", "environment.yml", "virtual-packages.yml"],
)
def test_comments_and_space_say_nothing_in_any_file(
    project: Workspace, profile: Profile, locked: Lock, name: str
) -> None:
    path = project.lock_folder(profile) / name
    text = path.read_text()
    first, _, rest = text.partition("\n")
    for changed in (
        f"{text}# reviewed\n",
        f"{text}\n\n",
        f"# reviewed\n{text}",
        f"{first}  \n\n{rest}",
    ):
        path.write_text(changed)
        assert check(project) == Check(Verdict.FRESH, ())
        assert read_lock(project.lock_folder(profile)).digest == locked.digest
    path.write_text(text.replace("\n", "\r\n"), newline="")
    if name == "conda-lock.yml":
        with pytest.raises(LockError, match="Windows line ends"):
            check(project)
    else:
        assert check(project).verdict is Verdict.RENDERING
    update_lock(project, profile, QUIET)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("old", "new"), [("optional: false", "optional: true"), ("category: main", "category: dev")]
)
def test_what_only_conda_lock_reads_cannot_be_edited(
    project: Workspace, profile: Profile, locked: Lock, old: str, new: str
) -> None:
    path = project.lock_file(profile)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LockError, match="not one of the packages always installed"):
        check(project)


def test_a_base_package_that_apt_no_longer_lists(tmp_path: Path) -> None:
    stack = data_stack.STACK.replace("packages = []", 'packages = ["libc6", "zlib1g"]')
    project = data_stack.workspace(tmp_path, stack=stack)
    profile = project.stack().select(None)
    archive = data_stack.FakeArchive("1")
    lock = make_lock(project, profile, QUIET, archive=lambda: archive)
    write_lock(lock, project.lock_folder(profile))
    assert check(project).verdict is Verdict.FRESH  # nothing is known: no lists, empty store
    lists = archive_folder(project, profile) / "state" / "lists"
    lists.mkdir(parents=True)
    (lists / "x_Packages").write_text(f"SHA256: {lock.base[0].sha256}\n")
    result = check(project)
    assert result.verdict is Verdict.BASE
    assert [reason.where for reason in result.reasons] == ["zlib1g"]
    data = b"the file"
    sha256 = hashlib.sha256(data).hexdigest()
    file = project.store.with_name("given")
    file.write_bytes(data)
    Store(project.store).add(file, sha256, move=True)
    pins = (lock.base[0], lock.base[1].model_copy(update={"sha256": sha256}))
    write_lock(replace(lock, base=pins), project.lock_folder(profile))
    assert check(project).verdict is Verdict.FRESH  # the store has a copy


def test_checking_writes_nothing(project: Workspace, locked: Lock) -> None:
    before = {path: path.stat().st_mtime_ns for path in project.root.parent.rglob("*")}
    check(project)
    assert {path: path.stat().st_mtime_ns for path in project.root.parent.rglob("*")} == before


@pytest.mark.parametrize(
    ("section", "key", "line"),
    [("a", "x", 2), ("a.b", "x", 5), ("a.b", "none", 4), ("c", "x", None), ("l", "y", 8)],
)
def test_line_of(section: str, key: str, line: int | None) -> None:
    text = '[a]\nx = 1\n\n[a.b]   # b\n "x" = 2\n[other]\n[[l]]\ny=1\n'
    assert line_of(text, section, key) == line
