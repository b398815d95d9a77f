"""The store: only right bytes come in, whole, and a full disk leaves nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assembler.errors import HashMismatchError, NoSpaceError
from assembler.sources.store import UNFINISHED, Store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stored(store: Store, data: bytes) -> Path:
    """Put bytes into the store by way of a file beside it."""
    source = store.root.with_name("given")
    source.write_bytes(data)
    return store.add(source, sha(data), move=True)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@given(st.binary(max_size=200), st.booleans())
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, move: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder / "store")
    source = folder / "file"
    source.write_bytes(data)
    assert not store.has(sha(data))
    path = store.add(source, sha(data), move=move)
    assert path.read_bytes() == data
    assert source.exists() is not move
    assert store.has(sha(data), len(data))
    assert not store.has(sha(data), len(data) + 1)
    assert files(store.root) == [path]
    assert path.stat().st_mode & 0o777 == 0o444


def test_wrong_bytes_are_named_and_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    source = tmp_path / "torch.whl"
    source.write_bytes(b"other")
    with pytest.raises(HashMismatchError) as caught:
        store.add(source, sha(b"right"))
    for word in ("torch.whl", sha(b"right"), sha(b"other")):
        assert word in str(caught.value)
    assert files(store.root) == []


def test_a_rotten_file_is_found_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stored(store, b"right")
    assert store.verify(sha(b"right"))
    path = store.path(sha(b"right"))
    path.chmod(0o644)
    path.write_bytes(b"wrong")
    assert not store.verify(sha(b"right"))
    assert not store.has(sha(b"right"))
    assert not store.verify(sha(b"right"))


def test_links_share_the_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = stored(store, b"right")
    place = tmp_path / "sources" / "recipe" / "file.whl"
    store.link(sha(b"right"), place)
    assert place.samefile(path)
    place.unlink()
    place.write_bytes(b"stale")
    store.link(sha(b"right"), place)
    assert place.read_bytes() == b"right"
    assert [one.name for one in place.parent.iterdir()] == ["file.whl"]


def test_a_copy_serves_where_no_link_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    store = Store(tmp_path / "store")
    path = stored(store, b"right")
    monkeypatch.setattr(os, "link", refuse)
    store.link(sha(b"right"), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"right"
    assert not (tmp_path / "copy").samefile(path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(target))

    store = Store(tmp_path / "store")
    (tmp_path / "file").write_bytes(b"right")
    monkeypatch.setattr("assembler.sources.store.shutil.copyfile", half)
    with pytest.raises(NoSpaceError, match="torch"):
        store.add(tmp_path / "file", sha(b"right"), name="torch.whl")
    assert files(store.root) == []


def test_a_second_process_waits_and_finds_it_done(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = sha(b"right")
    program = (
        "import sys; from pathlib import Path; from assembler.sources.store import Store\n"
        "print('up', flush=True)\n"
        "with Store(Path(sys.argv[1])).downloading(sys.argv[2]) as partial:\n"
        "    print('nothing to do' if partial is None else 'mine', flush=True)\n"
    )
    with store.downloading(digest) as partial:
        assert partial is not None
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(store.root), digest],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout
        assert child.stdout.readline() == "up\n"
        partial.write_bytes(b"right")
        store.complete(digest, digest, name="x")
    assert child.communicate(timeout=30)[0] == "nothing to do\n"
    assert files(store.root) == [store.path(digest)]


LITTER = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from assembler.sources.store import Store

store = Store(Path(sys.argv[1]))
store.reserve("in").write_bytes(b"half")
with ExitStack() as stack:
    (stack.enter_context(store.scratch("apt")) / "x.deb").write_bytes(b"half")
    stack.enter_context(store.downloading(sys.argv[2])).write_bytes(b"beginning")
    print("up", flush=True)
    sys.stdin.read()
"""


def kinds(store: Store) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (store.root / "partial").iterdir())


def test_what_a_killed_process_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = sha(b"right")
    child = subprocess.Popen(
        [sys.executable, "-c", LITTER, str(store.root), digest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        everything = sorted(["apt", digest, "in"])
        assert kinds(store) == everything
        old = time.time() - UNFINISHED - 1
        os.utime(store.partial(digest), (old, old))
        store.sweep()
        assert kinds(store) == everything
        os.utime(store.partial(digest))
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
    assert kinds(store) == everything
    store = Store(store.root)
    mine = store.reserve("tree")  # a store sweeps when it is first written to
    assert kinds(store) == [digest, "tree"]  # a download goes on from here
    os.utime(store.partial(digest), (old, old))
    store.sweep()
    assert list((store.root / "partial").iterdir()) == [mine]


def test_the_beginning_of_a_file_that_came_otherwise_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stored(store, b"right")
    store.partial(sha(b"right")).write_bytes(b"rig")
    store.sweep()
    assert files(store.root) == [store.path(sha(b"right"))]


def test_a_reserved_file_is_taken_in_by_moving_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    made = store.reserve("tree")
    made.write_bytes(b"right")
    store.sweep()
    assert store.add(made, sha(b"right"), move=True).read_bytes() == b"right"
    assert files(store.root) == [store.path(sha(b"right"))]
