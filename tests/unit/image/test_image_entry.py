"""Tar entries: what other tars read from them, and what is refused."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assembler.errors import ImageError
from assembler.image.entry import (
    END_OF_ARCHIVE,
    Entry,
    Kind,
    check_path,
    header,
    padding,
    parents,
)

parts = st.binary(min_size=1, max_size=130).filter(
    lambda part: not set(b"/\0") & set(part) and part not in (b".", b"..")
)
paths = st.lists(parts, min_size=1, max_size=6).map(b"/".join)


def read(data: bytes) -> tarfile.TarInfo:
    with tarfile.open(
        fileobj=io.BytesIO(data + END_OF_ARCHIVE), mode="r:", errors="surrogateescape"
    ) as tar:
        found = tar.next()
        assert found is not None
        return found


@given(paths, st.integers(0, 2**40), st.integers(0, 2**36), st.booleans())
def test_every_path_time_and_size_comes_back(path, size, mtime, executable):
    found = read(header(Entry.file(path, size, mtime, executable=executable)))
    assert found.name.encode("utf-8", "surrogateescape") == path
    assert (found.size, found.mtime) == (size, mtime)
    assert found.mode == (0o755 if executable else 0o644)
    assert (found.uid, found.gid, found.uname, found.gname) == (0, 0, "", "")


@given(paths, paths)
def test_links_keep_their_targets(path, target):
    found = read(header(Entry.symlink(path, target, 0)))
    assert found.issym()
    assert found.linkname.encode("utf-8", "surrogateescape") == target
    assert found.mode == 0o777
    hard = read(header(Entry(path, Kind.HARDLINK, 0o644, 0, target=target)))
    assert hard.islnk()


@given(paths)
def test_directories_end_with_a_slash_and_have_owners(path):
    found = read(header(Entry.directory(path, 7, 0o1777, owner=65532)))
    assert found.isdir()
    assert found.name.encode("utf-8", "surrogateescape") == path
    assert (found.mode, found.uid, found.gid) == (0o1777, 65532, 65532)


@pytest.mark.parametrize("length", [1, 99, 100])
def test_what_fits_ustar_is_one_block(length):
    assert len(header(Entry.file(b"x" * length, 0, 0))) == 512


@pytest.mark.parametrize("path", [b"x" * 101, b"a" * 200 + b"/" + b"b" * 200])
def test_what_does_not_fit_is_a_pax_record(path):
    data = header(Entry.file(path, 0, 0))
    assert len(data) > 512
    assert data[156:157] == b"x"
    assert read(data).name.encode() == path


def test_the_prefix_field_is_used_before_pax():
    data = header(Entry.file(b"a" * 150 + b"/" + b"b" * 100, 0, 0))
    assert len(data) == 512


@pytest.mark.parametrize("digits", range(85, 105))
def test_record_lengths_count_their_own_digits(digits):
    path = b"p" * 101 + b"q" * digits
    assert read(header(Entry.file(path, 0, 0))).name.encode() == path


@given(st.integers(0, 10_000))
def test_content_is_padded_to_blocks(size):
    assert (size + len(padding(size))) % 512 == 0
    assert len(padding(size)) < 512


@pytest.mark.parametrize(
    "path", [b"/etc/passwd", b"a/../../b", b"..", b"", b"./", b"a\0b", b"x/.wh.y", b".wh..wh..opq"]
)
def test_paths_that_no_layer_may_hold(path):
    with pytest.raises(ImageError, match="package-1"):
        check_path(path, "package-1")


def test_plain_paths_stay_and_doubled_slashes_go():
    assert check_path(b"./a//b/.c", "p") == b"a/b/.c"
    assert check_path(b"-rf", "p") == b"-rf"
    assert check_path(b"a.wh.b", "p") == b"a.wh.b"


def test_parents_come_outermost_first():
    assert parents(b"a/b/c") == (b"a", b"a/b")
    assert parents(b"a") == ()
