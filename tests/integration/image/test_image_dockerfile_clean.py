"""docker/Dockerfile.clean run for real: its file system is the assembler's image, path for path."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from image_debs import make_base
from image_packages import PLACEHOLDER, Item, make_conda

from assembler.build.builder import Builder
from assembler.channel.index import publish
from assembler.lock.files import read_lock, write_lock
from assembler.lock.model import LockedPackage
from assembler.progress import SilentProgress
from assembler.sources.fetch import fetch
from assembler.sources.store import Store
from assembler.workspace import Workspace
from tests.conftest import run_assembler
from tests.container_builder import ContainerBuilder, tiny_context

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Everything that a path is: type, mode, owner, link target, time, and the content's hash.
Facts = tuple[bytes, int, int, int, str, int, str]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context: the tiny stack's channel, a package of every odd kind, a base, a lock."""
    folder = tiny_context(tmp_path / "context")
    workspace = Workspace.at(folder)
    profile = workspace.stack().select("tiny")
    fetch(workspace, profile, SilentProgress())
    Builder(workspace, profile, SilentProgress(), jobs=2).run()
    odd = make_conda(
        tmp_path / "odd",
        "odd",
        [
            Item("bin/odd", f"#!{PLACEHOLDER}/bin/tiny\n".encode(), 0o755, prefixed="text"),
            Item("lib/first", b"shared", 0o755),
            Item("lib/second", kind="hardlink", target="lib/first", mode=0o755),
            Item("lib/third", kind="symlink", target="first"),
            Item("share/.hidden/.dot", b"dot", 0o600),
            Item("share/na\u00efve name", b"utf-8"),
            Item("share/" + "long/" * 60 + "name", b"deep"),
            Item("share/hole", bytes(3_000_000) + b"end"),
            Item("share/empty"),
        ],
    )
    records = publish(workspace.channel, [odd], progress=SilentProgress())
    done = run_assembler("lock", "--profile", "tiny", "-q", cwd=folder)
    assert done.returncode == 0, done.stderr
    lock = read_lock(workspace.lock_folder(profile))
    (added,) = (LockedPackage.from_record(record) for record in records if record.name == "odd")
    base = make_base(Store(workspace.store))
    write_lock(
        replace(lock, packages=(*lock.packages, added), base=base), workspace.lock_folder(profile)
    )
    return folder


def facts(tar: Path) -> dict[str, Facts]:
    """Return what a tar holds, by path without leading or closing slashes; its root aside."""
    found: dict[str, Facts] = {}
    with tarfile.open(tar, errors="surrogateescape") as archive:
        for info in archive:
            path = info.name.removeprefix("./").strip("/")
            if path in ("", "."):
                continue
            assert path not in found, f"{path} comes twice"
            content = archive.extractfile(info) if info.isfile() else None
            digest = hashlib.file_digest(content, "sha256").hexdigest() if content else ""
            link = info.linkname.removeprefix("/") if info.islnk() else info.linkname
            found[path] = (
                info.type, info.mode & 0o7777, info.uid, info.gid, link, int(info.mtime), digest
            )  # fmt: skip
    return found


def test_its_file_system_is_the_assemblers(
    container_builder: ContainerBuilder, context: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs.tar"
    container_builder.build(
        "Dockerfile.clean", context, f"type=tar,dest={theirs}",
        "--build-context", f"channel={context / 'channel'}",
        "--build-context", f"store={context / 'build' / 'store'}",
        "--build-arg", "PROFILE=tiny",
    )  # fmt: skip
    ours = tmp_path / "ours.tar"
    done = run_assembler(
        "image", "--profile", "tiny", "--format", "rootfs", "-o", ours, "-q", cwd=context
    )
    assert done.returncode == 0, done.stderr

    made, wanted = facts(theirs), facts(ours)
    differing = {path for path in {*made, *wanted} if made.get(path) != wanted.get(path)}
    assert {path: (made.get(path), wanted.get(path)) for path in sorted(differing)} == {}
    kinds = {kind for kind, *_ in wanted.values()}
    assert kinds == {tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE}
    assert wanted["opt/atom/lib/tiny/data"][2:4] == (0, 0)
    # Multi-stage in fact: nothing of the stage that pip ran in.
    programs = {"pip", "pip3", "git", "gcc", "cc", "sh", "bash", "python3", "assembler", "apt-get"}
    assert not [path for path in made if Path(path).name in programs]
    assert not [path for path in made if path.startswith(("project", "channel", "store", "wheels"))]
