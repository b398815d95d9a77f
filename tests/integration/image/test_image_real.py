"""The real stack: what the image holds is what py-rattler installs, file by file.

Needs what `assembler clean-image --profile cpu` makes: channel, lock and image of this checkout.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_packages import install

from assembler.digest import chunks
from assembler.image.compression import Codec
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces
from assembler.lock.files import read_lock
from assembler.workspace import Workspace

pytestmark = [pytest.mark.real, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
PREFIX = "/opt/atom"


@pytest.fixture(scope="module")
def workspace():
    workspace = Workspace.at(ROOT)
    profile = workspace.stack().select("cpu")
    layout = Layout(workspace.image_layout(profile))
    if not layout.entries() or not workspace.lock_file(profile).exists():
        pytest.skip("there is no image of the cpu profile; run `assembler clean-image`")
    return workspace


def digest(stream) -> str:
    found = hashlib.sha256()
    for chunk in chunks(stream):
        found.update(chunk)
    return found.hexdigest()


def image_facts(layout: Layout, entry: dict) -> Iterator[tuple[str, tuple[str, bool, str]]]:
    """Yield what an image holds below the prefix, in constant memory."""
    root = PREFIX.strip("/") + "/"
    for layer in layout.document(entry["digest"])["layers"]:
        with layout.blob(layer["digest"]).open("rb") as blob:
            pieces = Pieces(Codec("zstd", 3).expand(chunks(blob)))
            here: dict[str, tuple[str, bool, str]] = {}
            with tarfile.open(fileobj=pieces, mode="r|") as archive:
                for info in archive:
                    if not info.name.startswith(root):
                        continue
                    name = info.name.removeprefix(root)
                    if info.islnk():
                        here[name] = here[info.linkname.removeprefix(root)]
                    elif info.issym():
                        here[name] = ("symlink", False, info.linkname)
                    elif info.isdir():
                        here[name] = ("directory", True, "")
                    else:
                        content = digest(archive.extractfile(info))
                        here[name] = ("file", bool(info.mode & 0o111), content)
        yield from here.items()


def install_facts(folder: Path) -> Iterator[tuple[str, tuple[str, bool, str]]]:
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root) / name
            mode = path.lstat().st_mode
            relative = str(path.relative_to(folder))
            if stat.S_ISLNK(mode):
                yield relative, ("symlink", False, str(path.readlink()))
            elif stat.S_ISDIR(mode):
                yield relative, ("directory", True, "")
            else:
                with path.open("rb") as stream:
                    yield relative, ("file", bool(mode & 0o111), digest(stream))


def wanted(name: str) -> bool:
    """Leave out what is documented to differ: conda-meta's records, a cache's mark."""
    return not (name.startswith("conda-meta") or name == "CACHEDIR.TAG")


def added(name: str) -> bool:
    """Tell what an image may have beyond an install: bytecode of what is installed anywhere."""
    return name.endswith((".pyc", "__pycache__"))


def test_the_image_is_the_install(workspace, tmp_path):
    profile = workspace.stack().select("cpu")
    layout = Layout(workspace.image_layout(profile))
    entry = next(entry for entry in layout.entries() if "platform" in entry)
    lock = read_lock(workspace.lock_file(profile))
    label = layout.document(entry["digest"])["annotations"]["io.github.rocm.atom.lock"]
    if label != f"sha256:{lock.digest}":
        pytest.skip("the image was made from an older lock; run `assembler clean-image`")
    install(lock, workspace.channel, tmp_path / "prefix", PREFIX)
    ours = {name: fact for name, fact in image_facts(layout, entry) if wanted(name)}
    theirs = {name: fact for name, fact in install_facts(tmp_path / "prefix") if wanted(name)}
    assert len(ours) > 10_000
    assert theirs.keys() <= ours.keys()
    assert [name for name in ours.keys() - theirs.keys() if not added(name)] == []
    assert len([name for name in theirs if name.endswith(".pyc")]) > 4_000
    assert [name for name in theirs if ours[name] != theirs[name]] == []
