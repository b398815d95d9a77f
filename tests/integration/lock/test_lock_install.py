"""Environments from a lock: checked, whole or not at all, at any prefix."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assembler.channel.index import publish
from assembler.errors import AssemblerError, ChannelError, ConfigError, LockError, VerifyError
from assembler.lock.files import read_lock
from assembler.lock.install import install, verify_prefix
from assembler.lock.make import make_lock
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from assembler.workspace import Workspace
from tests.tiny_packages import PLACEHOLDER, make_package

QUIET = SilentProgress()


@pytest.fixture
def lock(locked: Workspace) -> Lock:
    return read_lock(locked.lock_folder(locked.stack().select(None)))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["e", "my env + %é", "x" * 200, "deep/er"])
def test_an_environment_is_made_and_is_as_the_lock_says(
    locked: Workspace, lock: Lock, tmp_path: Path, name: str
) -> None:
    prefix = tmp_path / name
    install(lock, locked.channel, prefix, QUIET, verify=True)
    assert verify_prefix(lock, prefix, QUIET) == ()
    script = (prefix / "bin/torch").read_text()
    assert f"{prefix}/bin/real" in script
    assert PLACEHOLDER not in script
    assert [path for path in prefix.parent.iterdir() if ".assembler-" in path.name] == []
    for record in (prefix / "conda-meta").glob("*.json"):
        assert ".assembler-" not in record.read_text()
    assert {p.name for p in (prefix / "conda-meta").glob("*.json")} == {
        f"{p.name}-{p.version}-{p.build}.json" for p in lock.packages
    }


def test_what_was_asked_for_is_in_the_records(
    locked: Workspace, lock: Lock, tmp_path: Path
) -> None:
    install(lock, locked.channel, tmp_path / "e", QUIET)
    (path,) = (tmp_path / "e/conda-meta").glob("atom-stack-*.json")
    assert json.loads(path.read_bytes())["requested_specs"] == ["atom-stack"]


def test_an_environment_is_replaced_whole(locked: Workspace, lock: Lock, tmp_path: Path) -> None:
    prefix = tmp_path / "e"
    install(lock, locked.channel, prefix, QUIET)
    before = tree(prefix)
    (prefix / "share/zlib.txt").write_text("changed")
    (prefix / "share/mine.txt").write_text("mine")
    install(lock, locked.channel, prefix, QUIET)
    assert tree(prefix) == before


def test_an_empty_folder_and_a_link_to_an_environment_are_taken(
    locked: Workspace, lock: Lock, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    install(lock, locked.channel, tmp_path / "link", QUIET)
    assert (tmp_path / "link").is_symlink()
    assert verify_prefix(lock, tmp_path / "real", QUIET) == ()


def test_other_folders_and_files_are_refused(locked: Workspace, lock: Lock, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="has files and is not a conda environment"):
        install(lock, locked.channel, home, QUIET)
    with pytest.raises(ConfigError, match="is a file"):
        install(lock, locked.channel, home / "thesis.txt", QUIET)
    assert tree(home) == {"thesis.txt": b"years of work"}


def test_a_package_that_is_not_the_locked_one_changes_nothing(
    locked: Workspace, lock: Lock, tmp_path: Path
) -> None:
    prefix = tmp_path / "e"
    install(lock, locked.channel, prefix, QUIET)
    before = tree(prefix)
    path = locked.channel / lock.by_name["zlib"].path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChannelError, match=f"has sha256 .*{lock.by_name['zlib'].sha256}"):
        install(lock, locked.channel, prefix, QUIET)
    path.unlink()
    with pytest.raises(ChannelError, match="is not there"):
        install(lock, locked.channel, prefix, QUIET)
    assert tree(prefix) == before


def test_two_packages_that_own_one_file_are_found(locked: Workspace, tmp_path: Path) -> None:
    profile = locked.stack().select(None)
    publish(
        locked.channel,
        [
            make_package(tmp_path, "atom", depends=["atom-stack", "rival"]),
            make_package(tmp_path, "rival", files={"share/zlib.txt": b"rival"}),
        ],
    )
    lock = make_lock(locked, profile, QUIET)
    with pytest.raises(VerifyError, match=r"share/zlib\.txt.*is one package's and (rival|zlib)'s"):
        install(lock, locked.channel, tmp_path / "e", QUIET, verify=True)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: (p / "share/zlib.txt").write_text("x"), "share/zlib.txt: has other content"),
        (lambda p: (p / "share/zlib.txt").unlink(), "share/zlib.txt: is missing"),
        (
            lambda p: ((p / "bin/torch").unlink(), (p / "bin/torch").symlink_to("/bin/true")),
            "bin/torch: is not a regular file",
        ),
        (
            lambda p: next((p / "conda-meta").glob("zlib*.json")).unlink(),
            "conda-meta/zlib-2.0-h1111111_0.json: is missing",
        ),
        (
            lambda p: (p / "conda-meta/x-1-0.json").write_text("{}"),
            "conda-meta/x-1-0.json: is not in the lock",
        ),
        (
            lambda p: next((p / "conda-meta").glob("zlib*.json")).write_text("{"),
            "is malformed",
        ),
    ],
)
def test_verify_finds_what_was_changed(  # type: ignore[no-untyped-def]
    locked: Workspace, lock: Lock, tmp_path: Path, spoil, words: str
) -> None:
    install(lock, locked.channel, tmp_path / "e", QUIET)
    spoil(tmp_path / "e")
    flaws = verify_prefix(lock, tmp_path / "e", QUIET)
    assert len(flaws) == 1
    assert words in str(flaws[0])


def test_another_platforms_lock_is_refused(locked: Workspace, lock: Lock, tmp_path: Path) -> None:
    with pytest.raises(LockError, match="is for linux-aarch64 and this machine is"):
        install(replace(lock, platform="linux-aarch64"), locked.channel, tmp_path / "e", QUIET)


def test_a_killed_installation_leaves_the_old_environment(
    locked: Workspace, lock: Lock, tmp_path: Path
) -> None:
    prefix = tmp_path / "e"
    install(lock, locked.channel, prefix, QUIET)
    before = tree(prefix)
    for delay in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4):
        child = subprocess.Popen(
            [sys.executable, "-m", "assembler", "install", "-p", str(prefix), "-q", "-c",
             str(locked.channel), "--project", str(locked.root)],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.2 + delay)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert tree(prefix) == before
    install(lock, locked.channel, prefix, QUIET)
    assert [path.name for path in tmp_path.iterdir() if ".assembler-" in path.name] == []


def test_no_network_is_needed(
    locked: Workspace, tmp_path: Path, no_network: tuple[str, ...]
) -> None:
    common = ["-c", str(locked.channel), "--project", str(locked.root)]
    for arguments in (
        ["install", "-p", str(tmp_path / "e"), "--verify"],
        ["lock", "--check"],
        ["lock"],
    ):
        done = subprocess.run(
            [*no_network, sys.executable, "-m", "assembler", *arguments, *common],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_errors_are_assemblers(locked: Workspace, lock: Lock) -> None:
    with pytest.raises(AssemblerError, match=r"/dev/null cannot be written"):
        install(lock, locked.channel, Path("/dev/null/e"), QUIET)


def test_a_full_disk_is_a_sentence_and_leaves_nothing(locked: Workspace, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    script = (
        'mount -t tmpfs -o size=16k tmpfs "$1" || exit 99\n'
        '"$2" -m assembler install -q -p "$1/e" -c "$3" --project "$4"; code=$?\n'
        'ls -A "$1"; exit $code'
    )
    done = subprocess.run(
        ["unshare", "-r", "-m", "sh", "-c", script, "sh", str(place), sys.executable,
         str(locked.channel), str(locked.root)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"this machine allows no mount namespace ({done.stderr.strip()})")
    assert done.returncode == 12, done.stderr
    assert "the disk is full" in done.stderr
    assert done.stdout == ""
