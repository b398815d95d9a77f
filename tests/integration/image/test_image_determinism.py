"""Same lock, same bytes: whatever the machine, its clock, its user and its load look like."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from image_packages import Item, fill_channel, layers, lock_of, make_conda, make_python, members

from assembler.image import stamps
from assembler.image.archive import write_archive
from assembler.image.compression import Codec
from assembler.image.epoch import Epoch
from assembler.image.layout import Layout
from assembler.image.request import Options
from assembler.progress import SilentProgress

GOLDEN = Path(__file__).parents[2] / "golden" / "image_digests.json"
UPDATE = "ASSEMBLER_UPDATE_GOLDEN"

PROGRAM = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
os.umask(int(os.environ["TEST_UMASK"], 8))
from image_packages import lock_of
from assembler import stack
from assembler.image.assemble import assemble
from assembler.image.request import Options
from assembler.progress import SilentProgress
from assembler.sources.store import Store
here = Path(sys.argv[1])
image = stack.Image.model_validate_json(sys.argv[4])
result = assemble(lock_of(Path(sys.argv[2])), Path(sys.argv[2]), image, here / "image",
    Store(here / "store"), here / "cache", SilentProgress(),
    options=Options(jobs=int(os.environ["TEST_JOBS"])))
(here / "result").write_text(result.digest)
os._exit(0)
"""

ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati")
LOCALES = ("C", "C.UTF-8", "tr_TR.UTF-8")
# Ten machines: every zone, umask, locale, home, hash seed and number of workers in other company.
VARIED = [
    {
        "TZ": ZONES[number % 4],
        "TEST_UMASK": ("022", "077", "000")[number % 3],
        "LC_ALL": LOCALES[number // 2 % 3],
        "TEST_JOBS": str(1 + number % 4),
        "PYTHONHASHSEED": str(number * 7919),
        **({"HOME": f"/nonexistent/{number}"} if number % 2 else {}),
    }
    for number in range(10)
]


def test_the_machine_leaves_no_trace(tmp_path, image):
    digests = set()
    for number, variables in enumerate(VARIED):
        here = tmp_path / f"machine {number}"
        channel = fill_channel(here / "channel")
        environment = {key: value for key, value in os.environ.items() if key != "HOME"}
        subprocess.run(
            [sys.executable, "-c", PROGRAM, here, channel, Path(__file__).parent,
             image.model_dump_json()],
            env={**environment, **variables},
            cwd=here,
            check=True,
        )  # fmt: skip
        digests.add((here / "result").read_text())
        blobs = (here / "image" / "blobs" / "sha256").iterdir()
        assert not any(b"machine" in path.read_bytes() for path in blobs)
    assert len(digests) == 1


def test_archives_are_the_same_bytes(make_image, channel, tmp_path):
    archives = []
    for name in ("one", "two"):
        result = make_image(
            lock_of(channel), channel, tmp_path / name, cache=tmp_path / f"{name}-cache"
        )
        with (tmp_path / f"{name}.tar").open("wb") as sink:
            write_archive(Layout(result.layout), sink, SilentProgress())
        archives.append((tmp_path / f"{name}.tar").read_bytes())
    assert archives[0] == archives[1]


def test_golden_digests(make_image, tmp_path):
    """Digests of three images that change only when FORMAT_VERSION and its kin are raised.

    When this fails and the change is wanted: raise SEGMENT_FORMAT, LAYER_FORMAT or FORMAT_VERSION,
    and run the test with ASSEMBLER_UPDATE_GOLDEN=1. The packages hold no modules, because bytecode
    depends on the Python that runs the tests.
    """
    channel = tmp_path / "channel"
    make_conda(channel, "plain", [Item("share/plain", b"plain\n"), Item("bin/run", b"run", 0o755)])
    make_conda(
        channel, "linked",
        [Item("lib/a", b"a" * 100000), Item("lib/b", kind="symlink", target="a"),
         Item("lib/c", kind="hardlink", target="lib/a"), Item("lib/" + "d" * 120, b"")],
    )  # fmt: skip
    lock = lock_of(channel)
    zstd = make_image(lock, channel, tmp_path / "zstd")
    diff_ids = {}
    for name, options in (
        ("zstd", Options()),
        ("budget-1", Options(budget=1, codec=Codec("zstd", 9), epoch=Epoch(1_000_000_000))),
        ("gzip", Options(codec=Codec("gzip", 4))),
    ):
        result = make_image(lock, channel, tmp_path / name, options=options)
        manifest = Layout(result.layout).document(result.digest)
        config = Layout(result.layout).document(manifest["config"]["digest"])
        diff_ids[name] = {"digest": result.digest, "diff_ids": config["rootfs"]["diff_ids"]}
    assert zstd.digest == diff_ids["zstd"]["digest"]
    if os.environ.get(UPDATE):
        GOLDEN.write_text(json.dumps(diff_ids, indent=2, sort_keys=True) + "\n")
    # diff_ids hold on every machine; digests also need the pinned zstd and zlib-ng.
    assert diff_ids == json.loads(GOLDEN.read_text())


def test_source_date_epoch_bounds_every_time(make_image, channel, tmp_path):
    result = make_image(lock_of(channel), channel, options=Options(epoch=Epoch(1_000_000_000)))
    times = {info.mtime for layer in layers(result.layout) for info, _ in members(layer)}
    assert times == {1_000_000_000}
    manifest = Layout(result.layout).document(result.digest)
    assert manifest["annotations"]["org.opencontainers.image.created"] == "2001-09-09T01:46:40Z"


def test_a_new_package_touches_no_other_layer(make_image, channel, tmp_path):
    make_conda(channel, "atom", [Item("share/atom", b"1")], timestamp=1_760_000_000)
    old = make_image(lock_of(channel), channel, tmp_path / "image")
    before = {layer.name: layer.digest for layer in old.layers}
    for path in channel.glob("*/atom-*"):
        path.unlink()
    make_conda(channel, "atom", [Item("share/atom", b"2")], version="2.0", timestamp=1_770_000_000)
    new = make_image(lock_of(channel), channel, tmp_path / "image")
    after = {layer.name: layer.digest for layer in new.layers}
    assert {name for name in before if before[name] != after[name]} == {"app"}
    assert len(list(Layout(new.layout).blobs.iterdir())) == len(new.layers) + 2


def written(folder):
    """Return what writing would change of each file; reading may change the time of access."""
    states = {path: path.stat() for path in folder.rglob("*")}
    return {
        path: (state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for path, state in states.items()
    }


def test_nothing_changed_writes_nothing(make_image, channel):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    before = written(first.layout)
    shutil.rmtree(channel)  # not even needed
    second = make_image(lock, channel)
    assert second.up_to_date
    assert not first.up_to_date
    assert second.digest == first.digest
    assert written(first.layout) == before


def test_a_short_blob_is_noticed(make_image, channel):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    blob = Layout(first.layout).blob(first.layers[0].digest)
    blob.write_bytes(blob.read_bytes()[:-1])
    second = make_image(lock, channel)
    assert not second.up_to_date
    assert second.digest == first.digest
    assert Layout(second.layout).has(first.layers[0].digest, first.layers[0].compressed_size)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_flipped_bytes_are_mended(make_image, channel):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    blobs = sorted(Layout(first.layout).blobs.iterdir())
    before = {blob: blob.read_bytes() for blob in blobs}
    for blob in blobs:  # layers, the configuration and the manifest
        flip(blob)
        assert not make_image(lock, channel).up_to_date
        assert {path: path.read_bytes() for path in blobs} == before
        assert make_image(lock, channel).up_to_date


def test_flipped_bytes_with_the_old_time_are_mended(make_image, channel):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    blob = Layout(first.layout).blob(first.layers[0].digest)
    was = blob.stat()
    flip(blob)
    os.utime(blob, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert not make_image(lock, channel).up_to_date


def test_untouched_blobs_are_not_read(make_image, channel, tmp_path, monkeypatch):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    read = []
    monkeypatch.setattr(stamps, "sha256_file", lambda path: read.append(path) or path.name)
    assert make_image(lock, channel).up_to_date
    assert read == []
    for file in (tmp_path / "cache" / "stamps").iterdir():
        file.write_text("[1]")
    assert make_image(lock, channel).up_to_date
    assert {path.name for path in read} == {
        path.name for path in Layout(first.layout).blobs.iterdir()
    }
    read.clear()
    assert make_image(lock, channel).up_to_date
    assert read == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 40])
def test_a_damaged_segment_is_made_again(make_image, channel, tmp_path, damage):
    lock = lock_of(channel)
    first = make_image(lock, channel)
    for segment in (tmp_path / "cache").rglob("*.segment"):
        data = segment.read_bytes()
        segment.write_bytes(data[: -len(damage)] + damage if damage else data[:-1] + b"x")
    shutil.rmtree(first.layout)
    assert make_image(lock, channel).digest == first.digest


def test_python_only_matters_where_it_is_used(make_image, tmp_path):
    channel = tmp_path / "channel"
    make_python(channel)
    make_conda(channel, "libplain", [Item("lib/x", b"x")])
    first = make_image(lock_of(channel), channel)
    make_conda(channel, "python", [Item("bin/python3", b"other")], version="3.99.0")
    next(channel.glob("*/python-3.1*")).unlink()
    second = make_image(lock_of(channel), channel)
    old, new = ({layer.packages: layer.digest for layer in r.layers} for r in (first, second))
    assert old["libplain",] == new["libplain",]
    assert old["python",] != new["python",]
