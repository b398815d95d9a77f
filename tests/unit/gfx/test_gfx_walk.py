import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import gfxmake as make
import pytest
import zstandard
from gfxmake import Read

from assembler.verify.gfx import CodeObject, Trouble, inventory

ONE, TWO = make.elf(), make.elf(make.GFX950)
PACKERS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def tar(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_in_every_packing(read: Read, suffix: str, form: int) -> None:
    name = f"lib/hsa/gfx942/{'long' * 20}/k.co"
    data = PACKERS[suffix](tar([("./lib/a.txt", b"text"), (name, ONE), ("b.so", TWO)], form))
    objects, troubles = read(data, f"x.tar{suffix}")
    assert not troubles
    assert [(o.path, o.processor) for o in objects] == [(name, "gfx942"), ("b.so", "gfx950")]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_wheels(read: Read, method: int) -> None:
    data = zipped([("pkg/__init__.py", b""), ("pkg/k.co", ONE)], method)
    ((one,), troubles) = read(data, "pkg-1-py3-none-any.whl")
    assert not troubles
    assert one.path == "pkg/k.co"


def test_conda_packages_show_their_files_as_installed(read: Read) -> None:
    inner = zstandard.compress(tar([("site-packages/p/k.co", ONE), ("lib/x.a", make.ar(
        [("short.o", TWO), ("a-rather-long-name.o", ONE)]))]))  # fmt: skip
    data = zipped(
        [
            ("metadata.json", b"{}"),
            ("pkg-p-1-0.tar.zst", inner),
            ("info-p-1-0.tar.zst", zstandard.compress(tar([("info/index.json", b"{}")]))),
        ],
        zipfile.ZIP_STORED,
    )
    objects, troubles = read(data, "p-1-0.conda")
    assert not troubles
    assert [o.path for o in objects] == [
        "site-packages/p/k.co",
        "lib/x.a!/short.o",
        "lib/x.a!/a-rather-long-name.o",
    ]


def test_folders_are_read_in_order_and_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "b").mkdir(parents=True)
    (root / "b" / "k.co").write_bytes(ONE)
    (root / "a.co").write_bytes(TWO)
    (root / "link.co").symlink_to("a.co")
    (root / "loop").symlink_to("..")
    os.mkfifo(root / "pipe")
    (root / "w.whl").write_bytes(zipped([("k.co", ONE)]))
    assert [item.path for item in inventory(root)] == ["a.co", "w.whl!/k.co", "b/k.co"]


def test_a_compressed_file_that_is_no_tar(read: Read) -> None:
    ((one,), troubles) = read(gzip.compress(ONE), "k.co.gz")
    assert not troubles
    assert one.processor == "gfx942"


@pytest.mark.parametrize("name", ["x.whl", "x.tar", "x.tar.gz", "x.tar.zst", "x.tar.xz", "x.a"])
def test_archives_cut_off_anywhere_are_troubles_or_complete(tmp_path: Path, name: str) -> None:
    many = [(f"f{n}.co", ONE) for n in range(3)]
    whole = {
        ".whl": lambda: zipped(many),
        ".a": lambda: make.ar(many),
        ".tar": lambda: tar(many),
    }.get(Path(name).suffix, lambda: PACKERS[Path(name).suffix](tar(many)))()
    place = tmp_path / name
    first = 512 if name == "x.tar" else 16  # without its first header it is no tar
    for length in range(first, len(whole), max(1, len(whole) // 60)):
        place.write_bytes(whole[:length])
        items = list(inventory(place))
        complete = sum(isinstance(item, CodeObject) for item in items) == 3
        # Nothing marks the end of an ar archive, so one cut off between members looks whole.
        if not complete and not (name == "x.a" and make.ar(many[:2])[:length] == make.ar(many[:2])):
            assert any(isinstance(item, Trouble) for item in items), length


def test_a_tar_header_that_wants_memory_is_refused(read: Read) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 1 << 30
    data = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20))
    _, (trouble,) = read(data, "x.tar.gz")
    assert "headers of more than" in trouble.reason


def test_a_zip_directory_that_wants_memory_is_refused(read: Read) -> None:
    data = bytearray(zipped([("k.co", ONE)]))
    at = data.rfind(b"PK\x05\x06")
    data[at + 12 : at + 16] = b"\0\0\0\x70"
    _, (trouble,) = read(bytes(data), "x.whl")
    assert "central directory" in trouble.reason


def test_archives_in_archives_have_an_end(read: Read) -> None:
    data = ONE
    for _ in range(12):
        data = zipped([("in.zip", data)])
    _, (trouble,) = read(data, "x.zip")
    assert "deep" in trouble.reason


def test_names_that_lead_out_are_only_names(read: Read) -> None:
    objects, _ = read(tar([("../../etc/k.co", ONE), ("/abs/k.co", TWO)]), "x.tar")
    assert [o.path for o in objects] == ["../../etc/k.co", "abs/k.co"]


class Layout:
    """An OCI image layout made layer by layer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.layers: list[dict[str, object]] = []
        self.diff_ids: list[str] = []

    def blob(self, data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (self.root / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, members: list[tuple[str, bytes]]) -> None:
        plain = tar(members)
        self.diff_ids.append(f"sha256:{hashlib.sha256(plain).hexdigest()}")
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        self.layers.append(self.blob(gzip.compress(plain), kind))

    def finish(self) -> None:
        config = {
            "architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
        }  # fmt: skip
        manifest = {
            "schemaVersion": 2,
            "config": self.blob(
                json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": self.layers,
        }
        entry = self.blob(
            json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json"
        )
        (self.root / "index.json").write_text(
            json.dumps({"schemaVersion": 2, "manifests": [entry]})
        )


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    made = Layout(tmp_path / "image")
    made.layer([("opt/a.co", ONE), ("opt/b.co", ONE), ("opt/d/e.co", ONE), ("opt/f/g.co", ONE)])
    made.layer([("opt/a.co", TWO), ("opt/.wh.b.co", b""), ("opt/d/.wh..wh..opq", b""), (
        "opt/d/n.co", TWO), (".wh.nothing", b""), ("opt/.wh.f", b"")])  # fmt: skip
    made.layer([("opt/z.whl", zipped([("k.co", ONE)]))])
    made.finish()
    return made.root


def test_images_show_what_the_top_layers_leave(layout: Path) -> None:
    assert {(item.path, item.processor) for item in inventory(layout)} == {
        ("opt/z.whl!/k.co", "gfx942"),
        ("opt/a.co", "gfx950"),
        ("opt/d/n.co", "gfx950"),
    }


def test_an_archive_of_a_layout_is_read_as_the_image(layout: Path, tmp_path: Path) -> None:
    place = tmp_path / "image.tar"
    with tarfile.open(place, "w") as archive:
        archive.add(layout, ".")
    assert list(inventory(place)) == list(inventory(layout))


def test_a_layer_cut_off_is_a_trouble(layout: Path) -> None:
    biggest = max((layout / "blobs" / "sha256").iterdir(), key=lambda one: one.stat().st_size)
    biggest.write_bytes(biggest.read_bytes()[:-30])
    assert any(isinstance(item, Trouble) for item in inventory(layout))
