"""Publishing: what is indexed, what is refused, and what a run that was killed leaves behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import zstandard

from assembler.channel import index as index_module
from assembler.channel.index import check, input_keys, publish, read_records, repair
from assembler.channel.location import state_folder
from assembler.channel.records import DamagedError
from assembler.errors import ChannelError
from tests.tiny_packages import make_package


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "my channel" / "ch + %41#é"


def tree(channel: Path) -> list[str]:
    return sorted(str(path.relative_to(channel)) for path in channel.rglob("*") if path.is_file())


def kinds(channel: Path) -> set[tuple[str, str]]:
    return {(problem.kind, problem.path) for problem in check(channel)}


INDEXES = [
    f"{subdir}/{name}"
    for subdir in ("linux-64", "noarch")
    for name in ("repodata.json", "repodata.json.zst")
]


def test_packages_move_in_and_nothing_else_is_there(tmp_path: Path, channel: Path) -> None:
    made = [
        make_package(tmp_path / "out", "a", depends=["b >=1"], input_key="a" * 64),
        make_package(tmp_path / "out", "b", subdir="linux-64"),
    ]
    records = publish(channel, made)
    assert [(r.name, r.path, r.depends) for r in records] == [
        ("a", "noarch/a-1.0-h0000000_0.conda", ("b >=1",)),
        ("b", "linux-64/b-1.0-h0000000_0.conda", ()),
    ]
    assert not any(path.exists() for path in made)
    assert tree(channel) == sorted([*INDEXES, *(r.path for r in records)])
    assert check(channel) == ()
    assert input_keys(channel) == {"noarch/a-1.0-h0000000_0.conda": "a" * 64}


def test_an_empty_channel_still_has_both_indexes(channel: Path) -> None:
    assert read_records(channel) == ()
    assert publish(channel, []) == ()
    assert tree(channel) == INDEXES
    assert check(channel) == ()


def test_the_compressed_index_is_the_index(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    plain = (channel / "noarch/repodata.json").read_bytes()
    packed = (channel / "noarch/repodata.json.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompress(packed) == plain
    assert "indexed_timestamp" not in plain.decode()


def test_a_rebuilt_channel_has_the_same_bytes(tmp_path: Path, channel: Path) -> None:
    names = ["a", "b", "c"]
    publish(channel, [make_package(tmp_path / "1", name) for name in names])
    other = tmp_path / "other"
    for name in reversed(names):
        publish(other, [make_package(tmp_path / "2", name)])
    assert tree(channel) == tree(other)
    for path in tree(channel):
        assert (channel / path).read_bytes() == (other / path).read_bytes()


def test_stale_packages_go_after_the_index(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a", build="h1_0")])
    new = make_package(tmp_path, "a", build="h2_0")
    records = publish(channel, [new], remove=["a-1.0-h1_0.conda"])
    assert [r.build for r in records] == ["h2_0"]
    assert "noarch/a-1.0-h1_0.conda" not in tree(channel)


def test_a_removal_of_what_is_published_is_not_done(tmp_path: Path, channel: Path) -> None:
    records = publish(channel, [make_package(tmp_path, "a")], remove=["a-1.0-h0000000_0.conda"])
    assert len(records) == 1


@pytest.mark.parametrize("name", ["../victim.txt", "noarch/../../victim.txt", "repodata.json", ""])
def test_only_packages_of_the_channel_are_removed(tmp_path: Path, channel: Path, name: str) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    victim = channel.parent / "victim.txt"
    victim.write_text("mine")
    assert len(publish(channel, [], remove=[name])) == 1
    assert victim.exists()
    assert check(channel) == ()


def test_two_packages_of_one_place_are_refused(tmp_path: Path, channel: Path) -> None:
    two = [make_package(tmp_path / folder, "a") for folder in ("x", "y")]
    with pytest.raises(ChannelError, match="2 packages are called noarch/a-"):
        publish(channel, two)
    assert all(path.exists() for path in two)


@pytest.mark.parametrize("call", range(6))
def test_a_full_disk_leaves_a_valid_channel(
    tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    publish(channel, [make_package(tmp_path, "a", build="h1_0")])
    calls = 0
    fsync = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > call:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    new = make_package(tmp_path, "a", build="h2_0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            publish(channel, [new], remove=["a-1.0-h1_0.conda"])
    assert not [path for path in channel.rglob("*") if path.name.endswith(".part")]
    for subdir in ("linux-64", "noarch"):
        named = json.loads((channel / subdir / "repodata.json").read_bytes())["packages.conda"]
        assert set(named) == {r.file for r in read_records(channel) if r.subdir == subdir}
    left = [new] if new.exists() else []
    (record,) = publish(channel, left, remove=["a-1.0-h1_0.conda"])
    assert record.build == "h2_0"
    assert check(channel) == ()


def test_a_channel_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(channel, [])
    new = make_package(tmp_path, "a")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(ChannelError, match=r"cannot be written \(Read-only"):
            publish(channel, [new])
    assert new.exists()


def test_same_name_with_new_content_is_noticed(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    before = read_records(channel)[0].sha256
    publish(channel, [make_package(tmp_path, "a", files={"share/a": b"other"})])
    assert read_records(channel)[0].sha256 != before
    assert check(channel) == ()


def test_unchanged_packages_are_not_read_again(
    tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(channel, [make_package(tmp_path, name) for name in "abc"])
    read: list[str] = []
    inspect = index_module.inspect
    monkeypatch.setattr(index_module, "inspect", lambda p: read.append(p.name) or inspect(p))
    monkeypatch.setattr(
        "assembler.channel.scan.inspect", lambda p: read.append(p.name) or inspect(p)
    )
    publish(channel, [make_package(tmp_path, "d")])
    assert read == ["d-1.0-h0000000_0.conda"]


def test_a_package_changed_in_place_with_its_old_time_is_read_again(
    tmp_path: Path, channel: Path
) -> None:
    publish(channel, [make_package(tmp_path, "a", files={"share/a": b"one"})])
    path = channel / "noarch/a-1.0-h0000000_0.conda"
    times = path.stat()
    replacement = next(
        made
        for number in range(1000)
        if (made := make_package(tmp_path, "a", files={"share/a": b"%03d" % number}))
        and made.stat().st_size == times.st_size
    )
    path.write_bytes(replacement.read_bytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert kinds(channel) == {("differs", "noarch/a-1.0-h0000000_0.conda")}
    publish(channel, [])
    assert check(channel) == ()


def test_a_channel_without_its_state_is_indexed_the_same(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a", input_key="b" * 64)])
    before = (channel / "noarch/repodata.json").read_bytes()
    shutil.rmtree(state_folder(channel))
    assert input_keys(channel) == {"noarch/a-1.0-h0000000_0.conda": "b" * 64}
    publish(channel, [])
    assert (channel / "noarch/repodata.json").read_bytes() == before


def damaged(tmp_path: Path, how: str) -> Path:
    path = make_package(tmp_path / how, "bad", files={"share/bad": os.urandom(5000)})
    data = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif how == "html":
        path.write_bytes(b"<html><body>404</body></html>")
    elif how == "renamed":
        path = path.rename(path.with_name("good-1.0-h0000000_0.conda"))
    elif how == "platform":
        path = make_package(tmp_path / "other", "bad", subdir="win-64")
    elif how == "fields":
        path = make_package(tmp_path / "other", "bad", index={"build_number": "x"})
    return path


HOWS = ["empty", "truncated", "flipped", "html", "renamed", "platform", "fields"]


@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_package_is_refused_before_anything_changes(
    tmp_path: Path, channel: Path, how: str
) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    before = {path: (channel / path).read_bytes() for path in tree(channel)}
    with pytest.raises(ChannelError) as caught:
        publish(channel, [make_package(tmp_path, "b"), damaged(tmp_path, how)])
    assert isinstance(caught.value, DamagedError | ChannelError)
    assert {path: (channel / path).read_bytes() for path in tree(channel)} == before


@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_package_in_the_channel_is_reported_and_quarantined(
    tmp_path: Path, channel: Path, how: str
) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    path = damaged(tmp_path, how)
    shutil.move(path, channel / "noarch" / path.name)
    assert kinds(channel) == {("damaged", f"noarch/{path.name}")}
    assert [r.name for r in publish(channel, [])] == ["a"]
    assert [problem.kind for problem in repair(channel)] == ["damaged"]
    assert check(channel) == ()
    assert list((state_folder(channel) / "quarantine/noarch").glob(f"{path.name}.*"))


def test_a_package_in_the_wrong_subdir_is_damage(tmp_path: Path, channel: Path) -> None:
    publish(channel, [])
    make_package(channel / "linux-64", "a")
    assert kinds(channel) == {("damaged", "linux-64/a-1.0-h0000000_0.conda")}


def test_foreign_files_are_reported_and_quarantined(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    (channel / "noarch/notes.txt").write_text("mine")
    (channel / ".tmp").mkdir()
    (channel / ".gitkeep").touch()
    expected = {("foreign", "noarch/notes.txt"), ("foreign", ".tmp")}
    assert kinds(channel) == expected
    assert {(p.kind, p.path) for p in repair(channel)} == expected
    assert check(channel) == ()
    assert (channel / ".gitkeep").exists()


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"packages": {"a": 1}}', b"[]", b'{"pack'])
def test_a_broken_index_is_said_and_repaired(tmp_path: Path, channel: Path, content: bytes) -> None:
    publish(channel, [make_package(tmp_path, "a")])
    good = (channel / "noarch/repodata.json").read_bytes()
    (channel / "noarch/repodata.json").write_bytes(content)
    if content != b"[]":
        with pytest.raises(ChannelError, match="repair"):
            read_records(channel)
    assert ("index", "noarch/repodata.json") in kinds(channel)
    repair(channel)
    assert (channel / "noarch/repodata.json").read_bytes() == good
    assert check(channel) == ()


def test_a_package_that_vanished_is_no_record(tmp_path: Path, channel: Path) -> None:
    publish(channel, [make_package(tmp_path, "a"), make_package(tmp_path, "b")])
    (channel / "noarch/a-1.0-h0000000_0.conda").unlink()
    assert [r.name for r in read_records(channel)] == ["b"]
    assert kinds(channel) == {("missing", "noarch/a-1.0-h0000000_0.conda")}
    publish(channel, [])
    assert check(channel) == ()


def test_no_channel_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="there is no channel"):
        check(tmp_path / "none")


class KilledError(Exception):
    pass


@pytest.mark.parametrize("step", range(12))
def test_a_run_killed_at_any_step_is_completed_by_the_next(
    tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    publish(channel, [make_package(tmp_path, name, build="h1_0") for name in "ab"])
    new = [make_package(tmp_path, name, build="h2_0") for name in "abc"]
    calls = 0

    def stop_at(original):  # type: ignore[no-untyped-def]
        def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls > step:
                raise KilledError
            return original(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "write_whole", stop_at(index_module.write_whole))
        patch.setattr(index_module, "_move_in", stop_at(index_module._move_in))
        patch.setattr(Path, "unlink", stop_at(Path.unlink))
        with contextlib.suppress(KilledError):
            publish(channel, new, remove=["a-1.0-h1_0.conda", "b-1.0-h1_0.conda"])
    # A reader in between: whatever the index names is there and is what the index says.
    for subdir in ("linux-64", "noarch"):
        named = json.loads((channel / subdir / "repodata.json").read_bytes())["packages.conda"]
        present = {record.file for record in read_records(channel) if record.subdir == subdir}
        assert set(named) == present
    left = [path for path in new if path.exists()]
    records = publish(channel, left, remove=["a-1.0-h1_0.conda", "b-1.0-h1_0.conda"])
    assert [(r.name, r.build) for r in records] == [(name, "h2_0") for name in "abc"]
    assert check(channel) == ()
    assert tree(channel) == sorted([*INDEXES, *(r.path for r in records)])
