import sqlite3
from pathlib import Path

import gfxmake as make
import msgpack
import pytest
from gfxmake import Read

from assembler.verify.gfx import CodeObject, Kind, Trouble, inventory

ONE, TWO = make.elf(), make.elf(make.GFX950)
LISTED = [
    ("lib/librocblas.so.5", "gfx942", ONE),
    ("lib/librocblas.so.5", "gfx950", TWO),
    ("bin/tool", "gfx942", ONE),
]


@pytest.mark.parametrize("scheme", ["none", "zstd-per-kernel"])
def test_kpack_archives(read: Read, scheme: str) -> None:
    data = make.kpack(LISTED, scheme)
    objects, troubles = read(data, "blas_gfx94X.kpack")
    assert not troubles
    assert [(o.section, o.bundle_id, o.processor) for o in objects] == [
        (binary, target, target) for binary, target, _ in LISTED
    ]
    assert {o.kind for o in objects} == {Kind.KPACK}
    assert {o.compression for o in objects} == {None if scheme == "none" else "zstd"}
    if scheme == "none":
        assert data[objects[1].offset :][: objects[1].size] == TWO


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"KPAK", "kpack header is cut off"),
        (b"KPAK\x02\0\0\0" + bytes(60), "format version 2"),
        (make.kpack(LISTED)[:-400], "the table of contents|no MessagePack map"),
        (make.kpack(LISTED)[:-9], "no MessagePack map"),
        (make.kpack(LISTED, compression_scheme="lzma"), "'lzma' is not known"),
        (make.kpack(LISTED, toc=[1]), "no map by name"),
        (make.kpack(LISTED, toc={"a": {"gfx942": {"ordinal": 99}}}), "number 99 of 3"),
        (make.kpack(LISTED, toc={"a": {"gfx942": {"ordinal": -1}}}), "ordinal is no number"),
        (make.kpack(LISTED, zstd_size=8), "is outside its block"),
        (make.kpack(LISTED, zstd_offset=1 << 50), "is cut off"),
        (make.kpack(LISTED, "none", blobs=[{"offset": 64, "size": 1 << 40}] * 3), "ends at"),
        (
            make.kpack(LISTED, toc={"a": {"gfx942": {"ordinal": 0, "original_size": 5}}}),
            "unpacks to more than 5 bytes",
        ),
    ],
)
def test_damaged_kpack_archives_are_troubles(read: Read, data: bytes, reason: str) -> None:
    objects, troubles = read(data, "blas.kpack")
    assert not objects
    assert troubles
    assert any(one in troubles[0].reason for one in reason.split("|")), troubles


def test_a_damaged_kpack_frame_does_not_hide_the_others(read: Read) -> None:
    data = bytearray(make.kpack(LISTED))
    at = data.find(b"\x28\xb5\x2f\xfd")
    data[at + 8 : at + 30] = b"\xff" * 22
    objects, (trouble,) = read(bytes(data), "blas.kpack")
    assert [o.processor for o in objects] == ["gfx950", "gfx942"]
    assert trouble.offset == at
    assert trouble.section == "lib/librocblas.so.5"


def test_kpack_table_must_be_msgpack_strings(read: Read) -> None:
    data = make.kpack(LISTED, toc={7: {}})
    _, (trouble,) = read(data, "blas.kpack")
    assert "table of contents" in trouble.reason or "map" in trouble.reason
    assert msgpack.version


def test_miopen_databases(tmp_path: Path) -> None:
    place = make.kdb(
        tmp_path / "gfx942130.kdb",
        [("conv.s", ONE, True), ("plain.cpp", TWO, False), ("pool.cl", make.bundle(
            [("hipv4-amdgcn-amd-amdhsa--gfx942", ONE)]), True)],
    )  # fmt: skip
    items = list(inventory(place))
    objects = [item for item in items if isinstance(item, CodeObject)]
    assert len(items) == 3
    assert [(o.section, o.processor, o.compression) for o in objects] == [
        ("row 1: conv.s", "gfx942", "bzip2"),
        ("row 2: plain.cpp", "gfx950", None),
        ("row 3: pool.cl", "gfx942", "bzip2"),
    ]
    assert {o.kind for o in objects} == {Kind.DATABASE}


def test_damaged_database_rows_are_troubles(tmp_path: Path) -> None:
    place = make.kdb(tmp_path / "x.kdb", [("a", ONE, True), ("b", ONE, True), ("c", ONE, True)])
    with sqlite3.connect(place) as database:
        database.execute("UPDATE kern_db SET uncompressed_size = 7 WHERE id = 1")
        database.execute("UPDATE kern_db SET kernel_blob = x'425a6839ff' WHERE id = 2")
    database.close()
    first, second, third = inventory(place)
    assert isinstance(first, Trouble)
    assert "unpacks to more than 7 bytes" in first.reason
    assert isinstance(second, Trouble)
    assert "bzip2 data is" in second.reason
    assert isinstance(third, CodeObject)


def test_truncated_databases_are_troubles(tmp_path: Path) -> None:
    place = make.kdb(tmp_path / "x.kdb", [(f"k{n}", ONE * 9, False) for n in range(20)])
    whole = place.read_bytes()
    for length in (17, 100, 4096, 5000, len(whole) // 2):
        place.write_bytes(whole[:length])
        assert any(isinstance(item, Trouble) for item in inventory(place)), length


def test_other_databases_hold_no_gpu_code(tmp_path: Path) -> None:
    place = tmp_path / "cache.sqlite"
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    assert list(inventory(place)) == []


def test_a_view_called_kern_db_is_not_run(tmp_path: Path) -> None:
    place = tmp_path / "x.kdb"
    with sqlite3.connect(place) as database:
        database.execute(
            "CREATE VIEW kern_db AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) "
            "SELECT x AS kernel_name, x AS kernel_blob, x AS uncompressed_size FROM c"
        )
    database.close()
    assert list(inventory(place)) == []
