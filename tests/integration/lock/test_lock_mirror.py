"""Packages from another channel: strict priority, mirroring, and a folder for another site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.channel.index import publish
from assembler.errors import AssemblerError, HashMismatchError, SolveError
from assembler.lock.files import read_lock
from assembler.lock.make import make_lock, update_lock
from assembler.lock.mirror import mirror, missing_packages
from assembler.progress import SilentProgress
from assembler.sources.store import Store
from assembler.workspace import Workspace
from tests import data_stack
from tests.conftest import run_assembler
from tests.integration.lock.conftest import Served
from tests.tiny_packages import make_package

QUIET = SilentProgress()


@pytest.fixture
def remote(tmp_path: Path, served: Served) -> Workspace:
    """A project whose root needs a package that only a web channel has."""
    web = tmp_path / "web" / "stable"
    publish(
        web,
        [
            make_package(tmp_path / "o", "far", "1.0", depends=["zlib"]),
            make_package(tmp_path / "o", "zlib", "2.9"),
        ],
    )
    stack = data_stack.STACK.replace(
        "recipes = []", f'recipes = []\nchannels = ["{served.url}/stable"]'
    )
    project = data_stack.workspace(tmp_path / "project", stack=stack)
    publish(project.channel, [make_package(tmp_path / "o", "atom", depends=["atom-stack", "far"])])
    return project


def test_the_local_channel_comes_first(remote: Workspace, served: Served) -> None:
    lock = make_lock(remote, remote.stack().select(None), QUIET)
    assert lock.by_name["far"].url == f"{served.url}/stable/noarch/far-1.0-h0000000_0.conda"
    assert lock.by_name["zlib"].version == "2.0"
    assert lock.by_name["zlib"].url is None


def test_mirroring_closes_the_channel(
    remote: Workspace, served: Served, tmp_path: Path, no_network: tuple[str, ...]
) -> None:
    profile = remote.stack().select(None)
    update_lock(remote, profile, QUIET)
    done = run_assembler("mirror", cwd=remote.root)
    assert done.returncode == 0, done.stderr
    assert "1 packages copied" in done.stdout
    closed = read_lock(remote.lock_folder(profile))
    assert all(package.url is None for package in closed.packages)
    assert missing_packages(closed, remote.channel) == ()
    text = (remote.lock_folder(profile) / "explicit.txt").read_text()
    assert served.url not in text
    assert "every locked package" in run_assembler("mirror", cwd=remote.root).stdout
    # Locking again with the network finds the mirrored package first.
    assert update_lock(remote, profile, QUIET).difference.is_empty
    # The air-gap rehearsal: from the exported folder alone, without any route.
    site = tmp_path / "usb stick"
    assert run_assembler("mirror", "--export", site, cwd=remote.root).returncode == 0
    shutil.rmtree(remote.root)
    for arguments in (["lock", "--check"], ["install", "-p", "env", "--verify"]):
        offline = subprocess.run(
            [*no_network, sys.executable, "-m", "assembler", *arguments],
            cwd=site,
            capture_output=True,
            text=True,
            check=False,
        )
        assert offline.returncode == 0, offline.stderr
    assert (site / "env/share/far.txt").read_text() == "far 1.0"
    assert len((site / "README.md").read_text().splitlines()) == 3


def test_an_export_is_brought_up_to_date_and_other_folders_are_refused(
    locked: Workspace, tmp_path: Path
) -> None:
    common = ["-c", locked.channel, "--project", locked.root]
    site = tmp_path / "site"
    assert run_assembler("mirror", "--export", site, *common, cwd=tmp_path).returncode == 0
    packages = sorted(path.name for path in site.rglob("*.conda"))
    publish(locked.channel, [make_package(tmp_path / "o", "zlib", "2.5")])
    update_lock(locked, locked.stack().select(None), QUIET)
    assert run_assembler("mirror", "--export", site, *common, cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in site.rglob("*.conda")) == [
        "zlib-2.5-h0000000_0.conda" if name.startswith("zlib") else name for name in packages
    ]
    refused = run_assembler("mirror", "--export", locked.root / "locks", *common, cwd=tmp_path)
    assert refused.returncode == 3
    assert "is not an export" in refused.stderr


def test_a_wrong_hash_from_the_web_is_kept_nowhere(remote: Workspace, tmp_path: Path) -> None:
    lock = make_lock(remote, remote.stack().select(None), QUIET)
    (path,) = (tmp_path / "web/stable/noarch").glob("far-*")
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    with pytest.raises(HashMismatchError, match="far-"):
        mirror(lock, remote.channel, Store(remote.store), QUIET)
    assert not list(remote.channel.rglob("far-*"))


def test_an_unreachable_channel_is_a_sentence(tmp_path: Path) -> None:
    stack = data_stack.STACK.replace(
        "recipes = []", 'recipes = []\nchannels = ["http://127.0.0.1:9/none"]'
    )
    project = data_stack.workspace(tmp_path, stack=stack)
    with pytest.raises(SolveError, match="a channel of the profile cannot be read") as caught:
        make_lock(project, project.stack().select(None), QUIET)
    assert isinstance(caught.value, AssemblerError)
    assert "\n" not in str(caught.value)


def test_a_package_that_was_built_here_cannot_be_mirrored(remote: Workspace) -> None:
    profile = remote.stack().select(None)
    lock = update_lock(remote, profile, QUIET).lock
    before = {path: path.read_bytes() for path in remote.lock_folder(profile).iterdir()}
    (remote.channel / lock.by_name["zlib"].path).unlink()
    done = run_assembler("mirror", cwd=remote.root)
    assert done.returncode == 7
    assert f"{lock.by_name['zlib'].path} is not there; see" in done.stderr
    assert not (remote.channel / lock.by_name["far"].path).exists()
    assert {path: path.read_bytes() for path in remote.lock_folder(profile).iterdir()} == before
