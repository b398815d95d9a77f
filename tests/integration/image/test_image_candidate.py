"""Images made beside their place: what is there stays until the new one is accepted."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from image_packages import Item, lock_of, make_conda

from assembler.channel.guard import exclusive
from assembler.errors import ImageError
from assembler.image import stamps
from assembler.image.assemble import is_present
from assembler.image.candidate import beside, candidate_path, failed_path, sweep
from assembler.image.layout import Layout
from assembler.image.request import Request
from assembler.progress import SilentProgress


@pytest.fixture
def place(tmp_path):
    return tmp_path / "images" / "tiny"


@pytest.fixture
def swap(make_image, channel, place, tmp_path):
    """Make the image of what is in the channel beside its place."""

    def enter(keep_failed=False):
        lock = lock_of(channel)
        return beside(
            place,
            tmp_path / "cache",
            SilentProgress(),
            lambda layout: make_image(lock, channel, layout),
            keep_failed=keep_failed,
        )

    return enter


def digest_at(place):
    (entry,) = Layout(place).entries()
    assert Layout(place).is_complete(entry)
    return entry["digest"]


def files(place):
    return {str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*") if path.is_file()}  # fmt: skip


def change(channel, content):
    make_conda(channel, "changing", [Item("share/x", content)])


def test_it_takes_the_place_when_the_block_ends_well(swap, channel, place):
    with swap() as first:
        assert not place.exists()
        assert digest_at(first.layout) == first.digest
    assert digest_at(place) == first.digest
    change(channel, b"2")
    before = files(place)
    with swap() as second:
        assert files(place) == before
        assert second.layout.stat().st_dev == place.stat().st_dev
        shared = {layer.digest for layer in first.layers} & {x.digest for x in second.layers}
        assert shared
        for digest in shared:
            assert Layout(place).blob(digest).samefile(Layout(second.layout).blob(digest))
    assert digest_at(place) == second.digest != first.digest
    assert not Layout(place).leftovers()
    assert not candidate_path(place).parent.exists()
    assert all(path.stat().st_nlink == 1 for path in Layout(place).blobs.iterdir())


def test_the_place_is_as_it_was_when_the_block_fails(swap, channel, place):
    with swap():
        pass
    before = files(place)
    change(channel, b"2")
    for keep in (False, True, True):
        with pytest.raises(ZeroDivisionError), swap(keep) as result:
            1 / 0  # noqa: B018
        assert files(place) == before
        assert failed_path(place).exists() == keep
        assert not candidate_path(place).parent.exists()
    assert digest_at(failed_path(place)) == result.digest
    with swap() as result:
        pass
    assert digest_at(place) == digest_at(failed_path(place)) == result.digest


def test_what_was_accepted_is_not_read_again(swap, channel, place, image, tmp_path, monkeypatch):
    with swap():
        pass
    change(channel, b"2")
    with swap():
        pass
    read = []
    monkeypatch.setattr(stamps, "sha256_file", lambda path: read.append(path) or path.name)
    wanted = (Request(lock_of(channel)),)
    assert is_present(wanted, image, place, tmp_path / "cache")
    assert read == []
    change(channel, b"3")
    assert not is_present((Request(lock_of(channel)),), image, place, tmp_path / "cache")


def test_a_former_image_that_is_damaged_is_mended(swap, place):
    with swap() as first:
        pass
    for layer in first.layers:
        blob = Layout(place).blob(layer.digest)
        blob.write_bytes(bytes(blob.stat().st_size))
    damaged = files(place)
    with swap() as second:
        assert second.digest == first.digest
        assert files(place) == damaged
    assert files(place) != damaged
    assert digest_at(place) == first.digest
    (place / "index.json").write_text("no json")
    with swap():
        pass
    assert digest_at(place) == first.digest


def test_a_blob_that_changes_meanwhile_is_not_accepted(swap, channel, place):
    with swap():
        pass
    before = files(place)
    change(channel, b"2")

    def spoil(layout, digest):
        blob = Layout(layout).blob(digest)
        blob.write_bytes(bytes(blob.stat().st_size))

    with pytest.raises(ImageError, match="changed while it was verified"), swap() as result:
        spoil(result.layout, result.digest)
    assert files(place) == before


def test_a_place_that_is_a_link_to_another_disk(swap, channel, place, tmp_path):
    """A link into memory where there is one, which no hard link or rename reaches."""
    memory = Path("/dev/shm")
    disk = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))
    try:
        place.parent.mkdir(parents=True)
        place.symlink_to(disk / "tiny")
        for content in (b"1", b"2"):
            change(channel, content)
            with swap() as result:
                assert result.layout.is_relative_to(disk)
            assert place.is_symlink()
            assert digest_at(place) == result.digest
        assert {path.name for path in disk.iterdir()} == {"tiny", ".tiny.state"}
    finally:
        shutil.rmtree(disk)


def test_something_else_at_the_place_stays(swap, place):
    place.mkdir(parents=True)
    (place / "precious").write_text("mine")
    with pytest.raises(ImageError, match="is no OCI image layout"), swap():
        pass
    assert files(place) == {"precious": b"mine"}


def test_without_hard_links_it_copies(swap, channel, place, monkeypatch):
    with swap():
        pass
    change(channel, b"2")

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with swap() as result:
        pass
    assert digest_at(place) == result.digest


def test_attestations_of_an_image_that_stays(swap, place):
    with swap() as result:
        pass
    layout = Layout(place)
    document = {"subject": {"digest": result.digest}, "config": {}, "layers": []}
    from assembler.image.documents import MANIFEST, Descriptor

    empty = Descriptor.of("application/vnd.oci.empty.v1+json", {})
    layout.put(empty)
    referrer = Descriptor.of(MANIFEST, {**document, "config": empty.as_dict()})
    layout.put(referrer)
    layout.publish([*layout.entries(), referrer.as_dict(artifactType="text/plain")])
    before = files(place)
    blob = layout.blob(result.layers[0].digest)
    blob.write_bytes(bytes(blob.stat().st_size))
    with swap():
        pass
    assert files(place) == before


def test_a_killed_run_s_candidate_is_swept_but_not_a_living_one_s(swap, place):
    with swap():
        pass
    left = candidate_path(place)
    left.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        # Another process holds the guard: its candidate is none of ours.
        with exclusive(place, SilentProgress()):
            if os.fork() == 0:
                sweep(place, SilentProgress())
                os._exit(0)
            os.wait()
            os._exit(0 if left.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    sweep(place, SilentProgress())
    assert not left.parent.exists()


def test_killed_at_every_step(swap, channel, place):
    """The process dies before each of its renames, links and removals in turn."""
    with swap() as result:
        former = result.digest
    seen = set()
    for step in range(1, 500):
        change(channel, b"%d" % step)
        pid = os.fork()
        if pid == 0:
            _die_at(step)
            with swap():
                pass
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        seen.add(digest_at(place) == former)
        if code == 0:
            break
        assert code == 9
        if digest_at(place) != former:
            former = digest_at(place)
    assert code == 0
    assert seen == {True, False}
    with swap() as result:
        pass
    assert digest_at(place) == result.digest
    assert not Layout(place).leftovers()
    names = {path.name for path in place.parent.iterdir()}
    assert names == {"tiny", ".tiny.state"}
    assert json.loads((place / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}


def _die_at(step):
    left = step

    def dying(function):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return function(*arguments, **options)

        return call

    for owner, names in ((Path, ("replace", "rename", "unlink")), (os, ("link", "unlink")),
                         (shutil, ("copyfile", "rmtree"))):  # fmt: skip
        for name in names:
            setattr(owner, name, dying(getattr(owner, name)))
