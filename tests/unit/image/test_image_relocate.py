"""Prefix replacement against a plain definition of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assembler.errors import ImageError
from assembler.image.relocate import (
    check_length,
    replace_binary,
    replace_text,
    script_shebang,
)

OLD = b"/build/placehold"
NEW = b"/opt/atom"


def plain_binary(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace in each C string from its first placeholder on, padding with NUL."""
    result = b""
    while (index := data.find(old)) >= 0:
        end = data.find(b"\0", index)
        end = len(data) if end < 0 else end
        text = data[index:end].replace(old, new)
        result += data[:index] + text + bytes(end - index - len(text))
        data = data[end:]
    return result + data


pieces = st.lists(
    st.sampled_from([OLD, OLD[:5], b"\0", b":", b"/lib", b"\n", b"/", b"b", OLD + b"/bin"]),
    max_size=20,
).map(b"".join)


@given(pieces, st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_streams_give_what_the_whole_gives(data, cuts):
    chunks, rest, turn = [], data, 0
    while rest:
        size = cuts[turn % len(cuts)]
        chunks.append(rest[:size])
        rest, turn = rest[size:], turn + 1
    assert b"".join(replace_binary(chunks, OLD, NEW)) == plain_binary(data, OLD, NEW)


@given(pieces)
def test_binary_files_keep_their_length(data):
    assert len(b"".join(replace_binary([data], OLD, NEW))) == len(data)


def test_every_placeholder_of_a_string_is_replaced_and_the_end_padded():
    data = b"a" + OLD + b"/x:" + OLD + b"/y\0next"
    expected = b"a" + NEW + b"/x:" + NEW + b"/y" + bytes(2 * (len(OLD) - len(NEW))) + b"\0next"
    assert b"".join(replace_binary([data], OLD, NEW)) == expected


def test_a_prefix_longer_than_its_room_is_refused():
    with pytest.raises(ImageError, match="longer than the 16 bytes that pkg: lib/x has room for"):
        check_length(OLD, b"/a/much/longer/prefix", "pkg: lib/x")


@pytest.mark.parametrize(
    ("line", "prefix", "expected"),
    [
        (b"#!" + OLD + b"/bin/sh", NEW, b"#!/opt/atom/bin/sh"),
        (b"#! " + OLD + b"/bin/sh -e", NEW, b"#! /opt/atom/bin/sh -e"),
        (
            b"#!" + OLD + b"/bin/python3.11 -u", b"/" + b"p" * 130,
            b"#!/bin/sh\n'''exec' \"/" + b"p" * 130 + b"/bin/python3.11\" -u \"$0\" \"$@\" #'''",
        ),
        (b"#!" + OLD + b"/bin/perl -w", b"/" + b"p" * 130, b"#!/usr/bin/env perl -w"),
        (b"#!" + OLD + b"/bin/perl", b"/with space", b"#!/usr/bin/env perl"),
        (b"#!/bin/sh", b"/with space", b"#!/bin/sh"),
    ],
)  # fmt: skip
def test_first_lines(line, prefix, expected):
    data = line + b"\nrest " + OLD + b"\n"
    assert replace_text(data, OLD, prefix) == expected + b"\nrest " + prefix + b"\n"


def test_a_newline_in_the_middle_of_a_prefix_is_no_match():
    assert replace_text(b"/build/\nplacehold", OLD, NEW) == b"/build/\nplacehold"


def test_entry_points_start_their_python_whatever_the_prefix():
    assert script_shebang("/opt/atom/bin/python3.11") == "#!/opt/atom/bin/python3.11"
    assert script_shebang("/a b/bin/python3.11").startswith("#!/bin/sh\n'''exec' \"/a b/bin/py")
    assert script_shebang("/" + "x" * 130).startswith("#!/bin/sh\n")
