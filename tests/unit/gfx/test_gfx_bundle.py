import re
import struct
import zlib

import gfxmake as make
import pytest
import zstandard
from gfxmake import Read

from assembler.verify.gfx import Form, Kind
from assembler.verify.gfx.bundle import Entry

IDS = {
    "hipv4-amdgcn-amd-amdhsa--gfx942": make.GFX942,
    "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+": 0x73F,
    "hipv4-amdgcn-amd-amdhsa--gfx1201": make.GFX1201,
}
PLAIN = make.bundle([(name, make.elf(flags)) for name, flags in IDS.items()])


@pytest.mark.parametrize(
    ("entry", "processor"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-", "gfx942"),
        ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
        ("hipv4-amdgcn-amd-amdhsa-unknown-gfx9-4-generic", "gfx9-4-generic"),
        ("openmp-amdgcn-amd-amdhsa--gfx90a", "gfx90a"),
        ("hip-spirv64-amd-amdhsa-unknown-amdgcnspirv", "amdgcnspirv"),
        ("host-x86_64-unknown-linux-gnu-", None),
        ("sycl-spir64_gen", None),
        ("cuda-nvptx64-nvidia-cuda--sm_80", None),
    ],
)
def test_entry_ids_name_their_processor(entry: str, processor: str | None) -> None:
    assert Entry(entry, 0, 0).processor == processor


def test_a_bundle_file_gives_its_entries(read: Read) -> None:
    objects, troubles = read(PLAIN, "kernels.co")
    assert not troubles
    assert [one.bundle_id for one in objects] == list(IDS)
    assert [one.target for one in objects] == ["gfx942", "gfx90a:xnack+", "gfx1201"]
    for one in objects:
        assert one.kind is Kind.BUNDLE
        assert PLAIN[one.offset : one.offset + one.size] == make.elf(one.flags)


@pytest.mark.parametrize("align", [8, 64, 4096])
def test_several_bundles_in_one_section(read: Read, align: int) -> None:
    one = make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx942", make.elf())], align)
    two = make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx950", make.elf(make.GFX950))], align)
    section = one.ljust(len(one) + -len(one) % align, b"\0") + two + bytes(align)
    data = make.host_elf((".hip_fatbin", section))
    objects, troubles = read(data, "lib.so")
    assert not troubles
    assert [one.target for one in objects] == ["gfx942", "gfx950"]
    assert {one.section for one in objects} == {".hip_fatbin"}
    for found in objects:
        assert data[found.offset :][: found.size] == make.elf(found.flags)


@pytest.mark.parametrize("method", ["zlib", "zstd"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_compressed_bundles_of_every_version(read: Read, version: int, method: str) -> None:
    one = make.compressed(PLAIN, version, method)
    two = make.compressed(
        make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx950", make.elf(make.GFX950))]), version, method
    )
    data = make.host_elf((".hip_fatbin", one + bytes(100) + two))
    objects, troubles = read(data, "lib.so")
    assert not troubles
    assert [one.target for one in objects] == ["gfx942", "gfx90a:xnack+", "gfx1201", "gfx950"]
    assert {one.compression for one in objects} == {method}
    assert data[objects[0].offset :].startswith(b"CCOB")
    assert objects[3].offset == objects[0].offset + len(one) + 100


def test_a_bundle_outside_the_usual_section_is_found(read: Read) -> None:
    data = make.host_elf((".rodata", b"x" * 777 + PLAIN + b"y" * 99))
    objects, troubles = read(data, "lib.so")
    assert not troubles
    assert len(objects) == 3
    for found in objects:
        assert data[found.offset :][: found.size] == make.elf(found.flags)


def test_embedded_code_and_compressed_bundles_are_found(read: Read) -> None:
    data = b"#" * 5000 + make.elf() + b"#" * 5000 + make.compressed(PLAIN) + b"#" * 5000
    objects, troubles = read(data)
    assert not troubles
    assert [one.kind for one in objects] == [Kind.EMBEDDED] + [Kind.COMPRESSED_BUNDLE] * 3
    assert objects[0].size == len(make.elf())


@pytest.mark.parametrize(
    "after",
    [
        b"\0",
        b"",
        b"\0host-\0hip",
        b"__END__\0" + bytes(64),
        struct.pack("<Q", 0) + bytes(200),
        struct.pack("<Q", 1 << 40) + bytes(200),
        struct.pack("<QQQQ", 1, 1, 1, 1 << 40) + bytes(200),
        struct.pack("<QQQQ", 2, 64, 10, 4) + b"\xff\xfe\xfd\xfc" + bytes(200),
    ],
)
def test_the_magic_as_a_string_constant_is_no_bundle(read: Read, after: bytes) -> None:
    for data in (
        make.host_elf((".rodata", b"some text\0" + make.MAGIC + after)),
        b"some text\0" + make.MAGIC + after,
    ):
        assert read(data, "libtriton.so") == ([], [])


def test_ccob_by_chance_is_no_bundle(read: Read) -> None:
    data = b"xxCCOB\x01\x00\x00\x00" + b"text" * 20 + b"CCOB\0\0CCOB\x03\x00\x01\x00" + bytes(99)
    assert read(data) == ([], [])


def test_a_magic_across_two_chunks_is_found(read: Read) -> None:
    for before in (-30, -24, -12, -1, 0, 1):
        objects, troubles = read(b"#" * ((4 << 20) + before) + PLAIN)
        assert len(objects) == 3
        assert not troubles


def test_entries_of_other_vendors_are_passed_over(read: Read) -> None:
    data = make.bundle([("cuda-nvptx64-nvidia-cuda--sm_80", b"cubin"), *[(
        "hipv4-amdgcn-amd-amdhsa--gfx942", make.elf())]])  # fmt: skip
    objects, troubles = read(data, "k.hipfb")
    assert [one.target for one in objects] == ["gfx942"]
    assert not troubles


def test_bitcode_and_spirv_have_their_processor_from_the_entry_id(read: Read) -> None:
    data = make.bundle(
        [
            ("hip-amdgcn-amd-amdhsa--gfx942", b"BC\xc0\xde" + bytes(60)),
            ("hip-spirv64-amd-amdhsa--amdgcnspirv", b"\x03\x02\x23\x07" + bytes(60)),
        ]
    )
    objects, troubles = read(data, "k.hipfb")
    assert not troubles
    assert [(o.form, o.processor) for o in objects] == [
        (Form.BITCODE, "gfx942"),
        (Form.SPIRV, "amdgcnspirv"),
    ]


def test_relocatable_device_code_in_a_named_section(read: Read) -> None:
    name = "__CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa--gfx942"
    data = make.host_elf(
        (name, make.elf(kind=1)), ("__CLANG_OFFLOAD_BUNDLE__host-x86_64-unknown-linux-gnu-", b"\0")
    )
    (found,), troubles = read(data, "k.o")
    assert not troubles
    assert (found.kind, found.section, found.elf_type) == (Kind.SECTION, name, "relocatable")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "ends at"),
        (lambda data: data[: len(data) // 2], "ends at"),
        (lambda data: data[:100], "is cut off"),
        (lambda data: data[:58] + b"\0" + data[59:], "has no entry ID"),
        (lambda data: data[:24] + struct.pack("<Q", 9999) + data[32:], "9999 entries"),
    ],
)
def test_a_mutilated_bundle_in_its_section_is_a_trouble(read: Read, change, reason: str) -> None:
    rest = make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx950", make.elf(make.GFX950))])
    data = change(PLAIN)
    _, troubles = read(data, "k.hipfb")
    assert any(reason in trouble.reason for trouble in troubles), troubles
    # What follows the damage is still found.
    section = make.host_elf((".hip_fatbin", data.ljust(8192, b"\0") + rest))
    objects, troubles = read(section, "lib.so")
    assert "gfx950" in {one.target for one in objects}


def _damage(whole: bytes, kind: str) -> bytes:
    return {
        "cut off": lambda: whole[:-9],
        "garbled": lambda: whole[:48] + b"\xff" * 40 + whole[88:],
        "says less": lambda: whole[:16] + struct.pack("<Q", 99) + whole[24:],
        "says more": lambda: whole[:16] + struct.pack("<Q", len(PLAIN) + 1) + whole[24:],
        "method": lambda: whole[:6] + b"\x07\0" + whole[8:],
        "md5": lambda: whole[:24] + bytes(8) + whole[32:],
    }[kind]()


@pytest.mark.parametrize("method", ["zlib", "zstd"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cut off", "ends at"),
        ("garbled", "is damaged|is cut off|have the MD5"),
        ("says less", "unpacks to more than 99 bytes"),
        ("says more", f"its header says {len(PLAIN) + 1}"),
        ("method", "starts here"),
        ("md5", "do not have the MD5"),
    ],
)
def test_damaged_compressed_bundles_are_troubles(
    read: Read, method: str, kind: str, reason: str
) -> None:
    data = _damage(make.compressed(PLAIN, 3, method), kind)
    objects, (trouble, *_) = read(make.elf(machine=62, osabi=0, sections=(
        ("", 0, b""), (".text", 1, bytes(64)), (".hip_fatbin", 1, data))), "lib.so")  # fmt: skip
    assert not objects
    assert trouble.section == ".hip_fatbin"
    assert re.search(reason, trouble.reason)


def test_a_decompression_bomb_stops_at_what_its_header_says(read: Read) -> None:
    bomb = zlib.compress(bytes(50 << 20))
    data = b"CCOB" + struct.pack("<HHQQQ", 3, 0, 32 + len(bomb), 1000, 0) + bomb
    _, (trouble,) = read(data, "k.co")
    assert "unpacks to more than 1000 bytes" in trouble.reason


def test_a_zstd_window_beyond_the_limit_is_refused(read: Read) -> None:
    options = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=0)
    stream = zstandard.ZstdCompressor(compression_params=options).compressobj()
    packed = stream.compress(bytes(1 << 20)) + stream.flush()
    data = b"CCOB" + struct.pack("<HHQQQ", 3, 1, 32 + len(packed), 1 << 20, 0) + packed
    _, (trouble,) = read(data, "k.co")
    assert "zstd data is damaged" in trouble.reason
    assert "memory" in trouble.reason.lower()


def test_an_empty_entry_and_a_host_entry(read: Read) -> None:
    data = make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx942", b"")]) + bytes(8)
    objects, (trouble,) = read(data, "k.co")
    assert not objects
    assert trouble.reason == "entry hipv4-amdgcn-amd-amdhsa--gfx942 is empty"


def test_rubbish_between_bundles_is_told_and_skipped(read: Read) -> None:
    section = PLAIN + b"\0" * 40 + b"rubbish here" + bytes(20) + make.elf(make.GFX950)
    objects, (trouble,) = read(make.host_elf((".hip_fatbin", section)), "lib.so")
    assert [one.target for one in objects][-1] == "gfx950"
    assert "neither a bundle nor" in trouble.reason


def test_offload_binaries(read: Read) -> None:
    bitcode = b"BC\xc0\xde" + bytes(60)
    section = (
        make.offload_binary("gfx90a:xnack+", bitcode)
        + make.offload_binary("sm_90", b"cubin", "nvptx64-nvidia-cuda")
        + make.offload_binary("gfx942", make.elf(kind=1))
    )
    data = make.host_elf((".llvm.offloading", section))
    (one, two), troubles = read(data, "k.o")
    assert not troubles
    assert (one.form, one.target, one.bundle_id) == (
        Form.BITCODE, "gfx90a:xnack+", "amdgcn-amd-amdhsa--gfx90a:xnack+",
    )  # fmt: skip
    assert (two.form, two.target) == (Form.ELF, "gfx942")
    assert data[two.offset :][: two.size] == make.elf(kind=1)
    for length in range(len(section)):
        items = read(make.host_elf((".llvm.offloading", section[:length])), "k.o")
        assert length == 0 or items[1] or len(items[0]) < 2


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (4, 7, "version 7"),
        (8, 1 << 40, "bytes"),
        (16, 1 << 40, "entry is cut off"),
        (24, 3, "entry of 3 bytes"),
        (48, 1000, "1000 strings"),
        (40, 1 << 40, "string table is cut off"),
        (64, 1 << 40, "image ends at"),
    ],
)
def test_damaged_offload_binaries_are_troubles(
    read: Read, at: int, value: int, reason: str
) -> None:
    data = bytearray(make.offload_binary("gfx942", make.elf()))
    struct.pack_into("<I" if at == 4 else "<Q", data, at, value)
    _, (trouble, *_) = read(make.host_elf((".llvm.offloading", bytes(data))), "k.o")
    assert reason in trouble.reason
    assert trouble.section == ".llvm.offloading"


def test_a_file_of_nothing_but_damage_is_given_up(read: Read) -> None:
    broken = make.compressed(PLAIN, digest=1)
    objects, troubles = read(broken * 300 + PLAIN, "k.co")
    assert not objects
    assert len(troubles) == 101
    assert "was not read" in troubles[-1].reason
