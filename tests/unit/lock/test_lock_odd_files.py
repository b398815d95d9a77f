"""Things in the places of lock and channel files: a sentence each, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assembler.channel.index import check as check_channel
from assembler.channel.index import input_keys, read_records
from assembler.errors import AssemblerError, ChannelError, LockError
from assembler.lock.check import check_lock
from assembler.lock.files import read_lock, write_lock
from assembler.lock.make import make_lock, update_lock, wants
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from assembler.stack import Profile
from assembler.workspace import Workspace
from tests import data_stack

QUIET = SilentProgress()
NOBODY = 65534


@pytest.fixture
def guarded() -> Iterator[Workspace]:
    """A locked project that belongs to a user whom rights bind, who runs what comes after."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        project = data_stack.workspace(folder / "project")
        update_lock(project, project.stack().select(None), QUIET)
        owner = os.geteuid()
        if owner == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield project
        finally:
            os.seteuid(owner)
            for subdir in project.channel.iterdir():
                subdir.chmod(0o755)
            project.channel.chmod(0o755)


@pytest.mark.parametrize("place", ["noarch", ""])
def test_a_channel_that_may_not_be_read_is_a_sentence(guarded: Workspace, place: str) -> None:
    profile = guarded.stack().select(None)
    (guarded.channel / place).chmod(0)
    for act in (
        lambda: check_channel(guarded.channel, QUIET),
        lambda: read_records(guarded.channel),
        lambda: make_lock(guarded, profile, QUIET),
    ):
        with pytest.raises(ChannelError, match=r"cannot be read \(Permission denied\)"):
            act()
    # Checking a lock goes on: it names what cannot be read.
    reasons = check_lock(guarded, profile).reasons
    assert any("cannot be read (Permission denied)" in reason.what for reason in reasons)


def test_a_package_folder_that_may_not_be_listed(guarded: Workspace) -> None:
    (guarded.channel / "noarch").chmod(0o311)
    with pytest.raises(ChannelError, match="noarch cannot be read"):
        input_keys(guarded.channel)


def test_a_lock_folder_that_may_not_be_read(guarded: Workspace) -> None:
    profile = guarded.stack().select(None)
    folder = guarded.lock_folder(profile)
    folder.chmod(0)
    try:
        for act in (
            lambda: check_lock(guarded, profile),
            lambda: read_lock(folder),
            lambda: update_lock(guarded, profile, QUIET),
        ):
            with pytest.raises(LockError, match=r"cannot be read \(Permission denied\)"):
                act()
    finally:
        folder.chmod(0o755)


def test_an_index_that_is_a_folder(project: Workspace) -> None:
    index = project.channel / "noarch" / "repodata.json"
    index.unlink()
    index.mkdir()
    with pytest.raises(ChannelError, match=r"repodata.json cannot be read \(Is a directory\)"):
        read_records(project.channel)


@pytest.mark.parametrize("name", ["conda-lock.yml", "pixi.lock"])
def test_a_folder_in_a_lock_files_place(project: Workspace, profile: Profile, name: str) -> None:
    folder = project.lock_folder(profile)
    lock = update_lock(project, profile, QUIET).lock
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != name}
    (folder / name).unlink()
    (folder / name).mkdir()
    refused: list[Callable[[], object]] = [
        lambda: write_lock(lock, folder),
        lambda: update_lock(project, profile, QUIET),
    ]
    if name == "conda-lock.yml":
        refused += [
            lambda: read_lock(folder),
            lambda: read_lock(folder / name),
            lambda: check_lock(project, profile),
        ]
    for act in refused:
        with pytest.raises(LockError, match=f"{name} is a folder; move it away"):
            act()
    (folder / name).rmdir()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("parts", [1, 2])
def test_a_file_in_the_lock_folders_place(project: Workspace, profile: Profile, parts: int) -> None:
    lock = make_lock(project, profile, QUIET)
    shutil.rmtree(project.locks, ignore_errors=True)
    place = (project.locks, project.lock_folder(profile))[parts - 1]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    acts: list[Callable[[], object]] = [
        lambda: write_lock(lock, project.lock_folder(profile)),
        lambda: update_lock(project, profile, QUIET),
        lambda: check_lock(project, profile),
    ]
    for act in acts:
        with pytest.raises(AssemblerError) as caught:
            act()
        assert isinstance(caught.value, LockError)
    assert place.read_text() == "mine"


def test_what_a_lock_was_asked_for(project: Workspace, profile: Profile, lock: Lock) -> None:
    assert wants(lock, ())
    assert wants(lock, ("all",))
    assert not wants(lock, ("gfx942",))
    one = make_lock(project, profile, QUIET, gfx=["gfx942"])
    assert wants(one, ())
    assert wants(one, ["gfx942"])
    assert not wants(one, ["gfx942", "gfx950"])
    assert not wants(one, ["all"])
    assert wants(make_lock(project, profile, QUIET, old=one, gfx=["all"]), ["all"])
