"""Layers become a tree as container engines make it, and damage is a sentence."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from assembler.errors import ImageError, NoSpaceError, VerifyError
from assembler.progress import SilentProgress
from assembler.verify.copies import drop_unused
from assembler.verify.oci import OciImage
from assembler.verify.opening import find_subjects, open_tree
from assembler.verify.unpack import Unpacker, remove_scratch
from tests.verify_making import Files, Item, make_conda, make_layout, make_tar

QUIET = SilentProgress()


def apply(root: Path, *layers: Files) -> Unpacker:
    unpacker = Unpacker(root)
    for position, files in enumerate(layers):
        unpacker.add_tar(io.BytesIO(make_tar(files)), layer=position)
    return unpacker


def on_disk(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_files_links_and_modes_are_kept(tmp_path: Path) -> None:
    done = apply(
        tmp_path,
        {
            "bin": Item(),
            "bin/su": Item(b"x", mode=0o4755, uid=3, gid=4, mtime=7),
            "bin/hard": Item(hard="bin/su"),
            "bin/soft": Item(target="/bin/su"),
            "pipe": Item(fifo=True),
        },
    )
    su = done.entries["bin/su"]
    assert (su.mode, su.uid, su.gid, su.mtime, su.size) == (0o4755, 3, 4, 7, 1)
    assert (tmp_path / "bin/su").stat().st_mode & 0o7777 == 0o755
    assert done.entries["bin/hard"].hardlink == "bin/su"
    assert (tmp_path / "bin/hard").samefile(tmp_path / "bin/su")
    assert (tmp_path / "bin/soft").readlink() == Path("/bin/su")
    assert done.entries["pipe"].kind == "other"
    assert not (tmp_path / "pipe").exists()


def test_a_whiteout_removes_what_is_below_and_only_that(tmp_path: Path) -> None:
    done = apply(
        tmp_path,
        {"etc/a": "1", "etc/sub/b": "2", "etc/keep": "3"},
        {"etc/.wh.a": "", "etc/.wh.sub": "", "etc/sub/new": "4"},
    )
    assert on_disk(tmp_path) == ["etc", "etc/keep", "etc/sub", "etc/sub/new"]
    assert sorted(done.entries) == on_disk(tmp_path)


def test_an_opaque_folder_hides_lower_layers_wherever_the_marker_stands(tmp_path: Path) -> None:
    done = apply(
        tmp_path, {"d/a": "1", "d/e/f": "2"}, {"d/new": "3", "d/.wh..wh..opq": "", "d/more": "4"}
    )
    assert sorted(done.entries) == ["d", "d/more", "d/new"]
    assert on_disk(tmp_path) == ["d", "d/more", "d/new"]


def test_a_file_replaces_a_folder_and_a_folder_a_link(tmp_path: Path) -> None:
    done = apply(
        tmp_path, {"a/b/c": "1", "link": Item(target="a")}, {"a": "file", "link/x": "through"}
    )
    assert done.entries["a"].kind == "file"
    assert done.entries["link"].kind == "directory"
    assert on_disk(tmp_path) == ["a", "link", "link/x"]


def test_no_entry_is_written_through_a_link_to_elsewhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    apply(tmp_path / "root", {"way": Item(target=str(outside)), "way/file": "caught"})
    assert list(outside.iterdir()) == []
    assert (tmp_path / "root/way/file").read_text() == "caught"


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/../up"])
def test_a_path_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="leads out"):
        apply(tmp_path / "root", {name: "x"})
    assert not (tmp_path / "up").exists()


def test_what_engines_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="before its target"):
        apply(tmp_path / "1", {"a": Item(hard="b"), "b": "x"})
    with pytest.raises(ImageError, match="lower layer"):
        apply(tmp_path / "2", {"b": "x"}, {"a": Item(hard="b")})
    twice = make_tar({"a": "1"})[:1024] + make_tar({"a": "2"})
    with pytest.raises(ImageError, match="twice"):
        Unpacker(tmp_path / "3").add_tar(io.BytesIO(twice))


@pytest.mark.parametrize("cut", [100, 700])
def test_a_cut_off_tar_is_damage(cut: int, tmp_path: Path) -> None:
    data = make_tar({"a": b"x" * 5000})
    with pytest.raises(ImageError, match="damaged"):
        Unpacker(tmp_path).add_tar(io.BytesIO(data[:cut]))


def test_a_name_that_no_file_system_holds_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be unpacked"):
        apply(tmp_path / "root", {"d/" + "n" * 300: "x"})


def test_folders_get_their_modes_once_they_are_full(tmp_path: Path) -> None:
    done = apply(tmp_path, {"d": Item(mode=0o500), "d/e": Item(mode=0o1777), "d/e/f": "x"})
    done.finish()
    kept = 0o500 if os.geteuid() == 0 else 0o700
    assert (tmp_path / "d").stat().st_mode & 0o7777 == kept
    assert (tmp_path / "d/e").stat().st_mode & 0o7777 == 0o1777


def test_scratch_with_closed_folders_is_removed(tmp_path: Path) -> None:
    apply(tmp_path / "root", {"d": Item(mode=0o000), "e/f": "x", "e": Item(mode=0o500)}).finish()
    remove_scratch(tmp_path / "root")
    assert not (tmp_path / "root").exists()
    remove_scratch(tmp_path / "root")


# -- opening ---------------------------------------------------------------------------------------

LAYERS: list[Files] = [
    {"bin/sh": Item(b"#!", mode=0o755), "etc/old": "x"},
    {"etc/.wh.old": "", "opt/atom/conda-meta/x.json": "{}"},
]


def archive_of(layout: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        archive.add(layout, ".")
        text = b"[]"
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return path


@pytest.mark.parametrize("compression", [("zstd", "gzip"), ("", "zstd"), ("gzip", "")])
def test_a_layout_and_its_archive_give_the_same_tree(
    compression: tuple[str, ...], tmp_path: Path
) -> None:
    layout = make_layout(tmp_path / "l", LAYERS, compression=compression, env={"A": "b=c"})
    seen = []
    for path in (layout, archive_of(layout, tmp_path / "image.tar")):
        (subject,) = find_subjects(path)
        with open_tree(subject, tmp_path / f"scratch-{path.name}", QUIET) as tree:
            assert tree.config is not None
            assert tree.config.env == {"A": "b=c"}
            assert tree.config.ids == (65532, 65532)
            assert tree.prefix == "opt/atom"
            assert tree.read("bin/sh") == b"#!"
            assert "etc/old" not in tree.entries
            seen.append((tree.digest, sorted(tree.entries.items())))
    assert seen[0] == seen[1]


def test_an_unpacked_image_is_used_again_and_makes_room_for_another(tmp_path: Path) -> None:
    (one,) = find_subjects(make_layout(tmp_path / "1", LAYERS))
    (two,) = find_subjects(make_layout(tmp_path / "2", [{"other": "x"}]))
    scratch = tmp_path / "scratch"
    with open_tree(one, scratch, QUIET) as first:
        (first.root / "mark").touch()
    with open_tree(one, scratch, QUIET) as again:
        assert (again.root / "mark").exists()
        with open_tree(two, scratch, QUIET):
            assert (again.root / "mark").exists(), "in use, so it stays"
    drop_unused(scratch)
    assert list(scratch.iterdir()) == []


def test_copies_of_another_version_are_made_anew(tmp_path: Path) -> None:
    (subject,) = find_subjects(make_layout(tmp_path / "l", LAYERS))
    scratch = tmp_path / "scratch"
    with open_tree(subject, scratch, QUIET) as tree:
        place = tree.root.parent
        digest = place.name
    for old in (b"", b"unpacked 0\n[]", None):
        if old is None:
            (place / "entries").unlink()
        else:
            (place / "entries").write_bytes(old)
        (place / "root/mark").touch()
        with open_tree(subject, scratch, QUIET) as tree:
            assert tree.root.parent.name == digest
            assert not (tree.root / "mark").exists()
            assert "bin/sh" in tree.entries


def test_many_processes_may_open_and_drop_at_once(tmp_path: Path) -> None:
    make_layout(tmp_path / "1", LAYERS)
    make_layout(tmp_path / "2", [{"other": "x"}])
    code = """
import sys
from pathlib import Path
from assembler.progress import SilentProgress
from assembler.verify.copies import drop_unused
from assembler.verify.opening import find_subjects, open_tree
base = Path(sys.argv[1])
for turn in range(12):
    (subject,) = find_subjects(base / str(1 + turn % 2))
    with open_tree(subject, base / "scratch", SilentProgress()) as tree:
        for entry in tree.files():
            assert len(tree.read(entry.path)) == entry.size
    drop_unused(base / "scratch")
"""
    line = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate()[1] for process in running]
    assert errors == [""] * 4


def test_what_a_killed_run_left_is_swept_away(tmp_path: Path) -> None:
    gone = 2**22 - 7  # above the default of pid_max, so no process has it
    (tmp_path / f".unpacking-0-{gone}").mkdir()
    (tmp_path / f".unpacking-0-{os.getpid()}").mkdir()
    drop_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".unpacking-0-{os.getpid()}"]


def test_a_package_is_unpacked_for_its_gates_only(tmp_path: Path) -> None:
    path = make_conda(
        tmp_path / "tiny-1.0-0.conda", {"lib/a": "x", "bin/b": Item(b"y", mode=0o755)}
    )
    (subject,) = find_subjects(path)
    scratch = tmp_path / "scratch"
    with open_tree(subject, scratch, QUIET) as tree:
        assert tree.kind == "conda"
        assert tree.entries["bin/b"].executable
        assert tree.info is not None
        assert json.loads((tree.info / "index.json").read_text())["name"] == "tiny"
    assert list(scratch.iterdir()) == []


def test_a_channel_is_all_its_packages(tmp_path: Path) -> None:
    for subdir, name in (("noarch", "b-1-0"), ("linux-64", "a-1-0"), ("linux-64", "c-1-0")):
        (tmp_path / subdir).mkdir(exist_ok=True)
        make_conda(tmp_path / subdir / f"{name}.conda", {})
    names = [subject.path.name for subject in find_subjects(tmp_path)]
    assert names == ["b-1-0.conda", "a-1-0.conda", "c-1-0.conda"]


def test_a_channel_that_cannot_be_listed_or_is_empty_is_not_green(tmp_path: Path) -> None:
    (tmp_path / "linux-64").mkdir()
    make_conda(tmp_path / "linux-64" / "a-1-0.conda", {})
    (tmp_path / "noarch").symlink_to("noarch")  # a loop: listing it fails for root too
    with pytest.raises(VerifyError, match="cannot be listed"):
        find_subjects(tmp_path)
    (tmp_path / "noarch").unlink()
    (tmp_path / "linux-64" / "a-1-0.conda").unlink()
    (tmp_path / "linux-64" / "repodata.json").write_text("{}")
    with pytest.raises(VerifyError, match="nothing to verify"):
        find_subjects(tmp_path)


def test_a_folder_without_files_is_not_green(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (subject,) = find_subjects(tmp_path / "empty")
    with (
        pytest.raises(VerifyError, match="nothing to verify"),
        open_tree(subject, tmp_path / "s", QUIET),
    ):
        pass


def test_what_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "bad.conda").write_bytes(b"PK\x05\x06")
    for name in ("missing", "note.txt"):
        with pytest.raises(VerifyError):
            find_subjects(tmp_path / name)
    (subject,) = find_subjects(tmp_path / "bad.conda")
    with pytest.raises(ImageError, match="damaged"), open_tree(subject, tmp_path / "s", QUIET):
        pass
    assert list((tmp_path / "s").iterdir()) == []


def test_a_changed_layer_is_noticed_and_leaves_nothing(tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", [{"a": b"x" * 3000}], compression=("",))
    (subject,) = find_subjects(layout)
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes().replace(b"xxx", b"xyx", 1))
    with (
        pytest.raises(ImageError, match="should be sha256"),
        open_tree(subject, tmp_path / "s", QUIET),
    ):
        pass
    assert not (tmp_path / "s").exists()
    assert subject.image is not None
    with (
        pytest.raises(ImageError, match="should be sha256"),
        subject.image.layer(0) as stream,
    ):
        stream.read(10)


def open_all(path: Path, scratch: Path) -> None:
    for subject in find_subjects(path):
        with open_tree(subject, scratch, QUIET):
            pass


def read_layer(image: OciImage) -> None:
    with image.layer(0) as stream:
        while stream.read(1 << 16):
            pass


def damage(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if how == "flipped" else data + b"?")


@pytest.mark.parametrize("how", ["gone", "flipped", "longer"])
@pytest.mark.parametrize("what", ["manifest", "config_blob", "first layer", "last layer"])
def test_an_unpacked_copy_says_nothing_of_a_damaged_image(
    what: str, how: str, tmp_path: Path
) -> None:
    layout = make_layout(tmp_path / "l", LAYERS)
    (subject,) = find_subjects(layout)
    image = subject.image
    assert image is not None
    with open_tree(subject, tmp_path / "s", QUIET):
        pass
    blobs = {
        "manifest": image.manifest, "config_blob": image.config_blob,
        "first layer": image.layers[0], "last layer": image.layers[-1],
    }  # fmt: skip
    damage(layout / blobs[what].file, how)
    with pytest.raises(ImageError) as told, open_tree(subject, tmp_path / "s", QUIET):
        pass
    assert told.value.exit_code == 10
    archive = archive_of(layout, tmp_path / "image.tar")
    for path in (layout, archive):
        with pytest.raises(ImageError):
            open_all(path, tmp_path / "s")


def test_a_damaged_blob_gets_a_new_time(tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", LAYERS)
    (subject,) = find_subjects(layout)
    assert subject.image is not None
    blob = layout / subject.image.layers[0].file
    damage(blob, "flipped")
    os.utime(blob, (1, 1))
    with pytest.raises(ImageError), open_tree(subject, tmp_path / "s", QUIET):
        pass
    assert blob.stat().st_mtime > 1


@pytest.mark.parametrize(
    "text",
    ["[]", "1", '{"manifests": 1}', '{"manifests": [1]}', '{"manifests": [{}]}', "{}", "[" * 9999],
)
def test_a_malformed_index_is_a_sentence(text: str, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", LAYERS)
    (layout / "index.json").write_text(text)
    with pytest.raises(ImageError):
        find_subjects(layout)


@pytest.mark.parametrize(
    "config",
    [[], {"config": [1]}, {"config": {"Labels": [1]}}, {"config": {"Entrypoint": 5}},
     {"rootfs": 1}, {"config": {"Env": 7}}],
)  # fmt: skip
def test_a_malformed_configuration_is_a_sentence(config: object, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", LAYERS)
    place = layout / "blobs/sha256"

    def blob(data: object) -> dict[str, object]:
        text = json.dumps(data).encode()
        digest = hashlib.sha256(text).hexdigest()
        (place / digest).write_bytes(text)
        return {"digest": f"sha256:{digest}", "size": len(text), "mediaType": "x"}

    entry = blob({"config": blob(config), "layers": []})
    (layout / "index.json").write_text(json.dumps({"manifests": [entry]}))
    with pytest.raises(ImageError):
        find_subjects(layout)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_layer_that_does_not_decompress_is_a_sentence(compression: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 400
    layout = make_layout(tmp_path / "l", [{"a": data}], compression=(compression,))
    (subject,) = find_subjects(layout)
    assert subject.image is not None
    blob = layout / subject.image.layers[0].file
    for damaged in (blob.read_bytes()[:-9], blob.read_bytes()[:40] + b"?" * 60):
        blob.write_bytes(damaged)
        with pytest.raises(ImageError):
            read_layer(subject.image)


@pytest.mark.parametrize("name", ["index.json", "blobs"])
def test_an_incomplete_layout_is_a_sentence(name: str, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", LAYERS)
    (layout / name).rename(tmp_path / "away")
    with pytest.raises(ImageError, match="lacks"):
        find_subjects(layout)


def test_a_full_disk_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (subject,) = find_subjects(make_layout(tmp_path / "l", LAYERS))

    def full(self: Unpacker, stream: object, *, layer: int = 0) -> None:
        (self.root / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Unpacker, "add_tar", full)
    with (
        pytest.raises(NoSpaceError, match="does not fit"),
        open_tree(subject, tmp_path / "s", QUIET),
    ):
        pass
    assert list((tmp_path / "s").iterdir()) == []
