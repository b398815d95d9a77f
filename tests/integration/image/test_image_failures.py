"""What goes wrong leaves the former image as it was, and a sentence."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from image_packages import Item, fill_channel, layers, lock_of, make_conda, members

from assembler.errors import ChannelError, HashMismatchError, ImageError, MissingToolError
from assembler.image import archive
from assembler.image.engine import Engine, load
from assembler.image.layout import Layout
from assembler.progress import SilentProgress

PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from image_packages import lock_of
from assembler import stack
from assembler.image.assemble import assemble
from assembler.progress import SilentProgress
from assembler.sources.store import Store
here = Path(sys.argv[1])
image = stack.Image.model_validate_json(sys.argv[3])
print("started", flush=True)
result = assemble(lock_of(here / "channel"), here / "channel", image, here / "image",
    Store(here / "store"), here / "cache", SilentProgress())
print(result.digest, flush=True)
os._exit(0)
"""


def state(layout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(layout)): path.read_bytes()
            for path in layout.rglob("*") if path.is_file()}  # fmt: skip


@pytest.fixture
def former(make_image, channel):
    """A valid image, and a lock that differs from the one it was made of."""
    result = make_image(lock_of(channel), channel)
    make_conda(channel, "more", [Item("share/more", os.urandom(1 << 20))])
    return result, lock_of(channel)


def test_a_package_cut_short(make_image, channel, former):
    result, lock = former
    before = state(result.layout)
    package = next(channel.glob("*/more-*"))
    package.write_bytes(package.read_bytes()[:-5000])
    with pytest.raises(ChannelError, match="not a whole conda package"):
        make_image(lock, channel)
    assert state(result.layout) == before


def test_a_package_whose_bytes_are_not_the_locked_ones(make_image, channel, former):
    result, lock = former
    before = state(result.layout)
    make_conda(channel, "more", [Item("share/more", b"other")])
    with pytest.raises(HashMismatchError, match="but the lock says"):
        make_image(lock, channel)
    assert state(result.layout) == before


def test_a_package_that_is_gone(make_image, channel, former):
    _, lock = former
    next(channel.glob("*/more-*")).unlink()
    with pytest.raises(ChannelError, match=r"there is no .*more"):
        make_image(lock, channel)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([Item("share/.wh.x", b"1")], "deletions"),
        ([Item("../escape", b"1")], "out of its prefix"),
        ([Item("bin/tiny", b"1")], "both bring bin/tiny"),
        ([Item("lib/third/x", b"1")], "symbolic link of tiny"),
    ],
)
def test_packages_that_contradict_engines_or_each_other(make_image, channel, items, message):
    make_conda(channel, "odd", items)
    with pytest.raises(ImageError, match=message):
        make_image(lock_of(channel), channel)


def test_a_member_that_paths_json_names_but_the_package_lacks(make_image, channel):
    make_conda(channel, "odd", [Item("share/a", kind="hardlink", target="share/b"),
                                Item("share/b", b"later")])  # fmt: skip
    facts = {
        info.name: data
        for layer in layers(make_image(lock_of(channel), channel).layout)
        for info, data in members(layer)
    }
    # A hard link before its target becomes a file of its own: engines refuse it otherwise.
    assert facts["opt/atom/share/a"] == b"later"


def test_a_hard_link_to_a_file_that_is_not_installed(make_image, channel):
    hidden = Item("share/hidden", b"content", listed=False)
    make_conda(channel, "odd", [hidden, Item("share/x", kind="hardlink", target="share/hidden")])
    result = make_image(lock_of(channel), channel)
    facts = {info.name: data for layer in layers(result.layout) for info, data in members(layer)}
    assert facts["opt/atom/share/x"] == b"content"
    assert "opt/atom/share/hidden" not in facts


def test_empty_directories_are_directories(make_image, channel):
    make_conda(channel, "odd", [Item("share/jit/build", kind="directory")])
    result = make_image(lock_of(channel), channel)
    found = [info for layer in layers(result.layout) for info, _ in members(layer)]
    assert any(info.isdir() and info.name == "opt/atom/share/jit/build" for info in found)


def test_set_id_bits_are_removed_and_told(make_image, channel):
    make_conda(channel, "odd", [Item("bin/su", b"su", 0o4755)])
    result = make_image(lock_of(channel), channel)
    assert result.notes == ("set-id bits were removed from bin/su",)
    found = {info.name: info for layer in layers(result.layout) for info, _ in members(layer)}
    assert found["opt/atom/bin/su"].mode == 0o755


def test_activation_scripts_reach_the_environment(make_image, channel):
    make_conda(channel, "odd", [Item("etc/conda/activate.d/x.sh", b"export X=$CONDA_PREFIX/x\n")])
    result = make_image(lock_of(channel), channel)
    layout = Layout(result.layout)
    config = layout.document(layout.document(result.digest)["config"]["digest"])
    assert "X=/opt/atom/x" in config["config"]["Env"]
    again = make_image(lock_of(channel), channel, options=None, tag="other")
    assert again.digest == result.digest


def test_a_python_that_does_not_run_here(make_image, channel):
    for path in channel.glob("*/python-*"):
        path.unlink()
    from image_packages import PYTHON

    make_conda(channel, "python", [Item(f"bin/python{PYTHON}", b"\x7fELF no", 0o755)],
               version=f"{PYTHON}.0")  # fmt: skip
    with pytest.raises(MissingToolError, match="does not run on this machine"):
        make_image(lock_of(channel), channel)


def test_a_place_that_is_something_else(make_image, channel, tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "precious").write_text("mine")
    with pytest.raises(ImageError, match="is no OCI image layout"):
        make_image(lock_of(channel), channel)
    assert (tmp_path / "image" / "precious").read_text() == "mine"


def test_no_layer_breaks_an_engine_s_rules(make_image, channel):
    result = make_image(lock_of(channel), channel)
    for layer in layers(result.layout):
        seen: set[str] = set()
        folders: set[str] = set()
        for info, _ in members(layer):
            assert info.name not in seen
            parent = info.name.rpartition("/")[0]
            assert not parent or parent in folders, f"{info.name} before its folder"
            if info.isdir():
                folders.add(info.name)
            if info.islnk():
                assert info.linkname in seen
            assert not info.name.rpartition("/")[2].startswith(".wh.")
            assert (info.uid, info.gid, info.uname, info.gname) == (0, 0, "", "")
            assert info.mode in (0o644, 0o755, 0o777)
            assert not info.pax_headers.keys() - {"path", "linkpath", "size"}
            seen.add(info.name)


def run(here: Path, image) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, here, Path(__file__).parent, image.model_dump_json()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_any_point(tmp_path, image, number):
    """20 rounds: the layout is always the old or the new image, and the next run completes."""
    here = tmp_path
    fill_channel(here / "channel")
    valid: set[str] = set()
    chance = random.Random(5)
    for turn in range(10):
        content = random.Random(turn).randbytes(3 << 20)
        make_conda(here / "channel", "changing", [Item("share/x", content)])
        process = run(here, image)
        assert process.stdout.readline() == "started\n"
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(number)
        process.communicate(timeout=60)
        layout = Layout(here / "image")
        if layout.path.exists():
            (entry,) = layout.entries()
            assert layout.is_complete(entry)
        shown = [path.name for path in here.iterdir() if not path.name.startswith(".")]
        assert set(shown) <= {"channel", "image", "cache", "store"}
        if turn % 3 == 2:
            process = run(here, image)
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            digest = out.split()[-1]
            assert [entry["digest"] for entry in layout.entries()] == [digest]
            valid.add(digest)
            left = [p for p in here.rglob(".*partial*") if "cache" not in p.parts]
            assert left == []
    assert len(valid) == 3


def test_two_at_once_make_one_image(tmp_path, image):
    fill_channel(tmp_path / "channel")
    both = [run(tmp_path, image), run(tmp_path, image)]
    digests = set()
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        digests.add(out.split()[-1])
    (digest,) = digests
    layout = Layout(tmp_path / "image")
    assert [entry["digest"] for entry in layout.entries()] == [digest]
    assert layout.is_complete(layout.entries()[0])
    assert not layout.leftovers()


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """An engine that reads all of its input; the fixture is the file with its process number."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "podman"
    program.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\ncat >/dev/null\necho loaded\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "pid"


def test_no_engine_is_started_for_an_incomplete_layout(make_image, channel, podman):
    result = make_image(lock_of(channel), channel)
    layout = Layout(result.layout)
    assert load(layout, Engine("podman", "5"), SilentProgress()) == "loaded"
    podman.unlink()
    blob = layout.blob(result.layers[0].digest)
    data = blob.read_bytes()
    blob.unlink()
    with pytest.raises(ImageError, match="not a complete"):
        load(layout, Engine("podman", "5"), SilentProgress())
    blob.write_bytes(data)
    (layout.path / "oci-layout").unlink()
    with pytest.raises(ImageError, match="not a complete"):
        load(layout, Engine("podman", "5"), SilentProgress())
    assert not podman.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_engine_ends_with_the_writing(make_image, channel, podman, monkeypatch, error):
    result = make_image(lock_of(channel), channel)

    def stop(sink, stream):
        while not podman.exists() or not podman.read_text():
            time.sleep(0.01)
        raise error

    monkeypatch.setattr(archive, "chunks", lambda stream: stop(None, stream))
    with pytest.raises(error):
        load(Layout(result.layout), Engine("podman", "5"), SilentProgress())
    assert not Path(f"/proc/{podman.read_text().strip()}").exists()


@pytest.mark.parametrize(
    "index", ["[]", '{"manifests": [{}]}', '{"manifests": [1]}', '{"manifests": [{"digest": 1}]}']
)
def test_a_malformed_index_holds_no_images(tmp_path, index):
    (tmp_path / "index.json").write_text(index)
    assert Layout(tmp_path).entries() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk(make_image, former, channel, tmp_path):
    result, lock = former
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", small], check=False,
                      capture_output=True).returncode:  # fmt: skip
        pytest.skip("this machine mounts no tmpfs")
    try:
        shutil.copytree(result.layout, small / "image")
        before = state(small / "image")
        with pytest.raises(OSError, match="No space left on device"):
            make_image(lock, channel, small / "image", cache=tmp_path / "fresh")
        assert state(small / "image") == before
        with pytest.raises(OSError, match="No space left on device"):
            make_image(lock, channel, small / "new", cache=tmp_path / "fresh2")
        assert not (small / "new").exists()
    finally:
        with contextlib.suppress(OSError):
            subprocess.run(["umount", small], check=True)
    assert make_image(lock, channel).digest != result.digest
