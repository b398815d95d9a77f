import struct

import gfxmake as make
import pytest
from gfxmake import Read

from assembler.verify.gfx import Feature, Kernel, Kind

KERNELS = [
    {
        ".name": "gemm", ".symbol": "gemm.kd", ".vgpr_count": 128, ".agpr_count": 64,
        ".sgpr_count": 40, ".group_segment_fixed_size": 65536,
        ".private_segment_fixed_size": 16, ".wavefront_size": 64, ".vgpr_spill_count": 3,
    },
    {".name": "fill"},
]  # fmt: skip


def test_a_bare_code_object_says_what_its_header_says(read: Read) -> None:
    objects, troubles = read(make.elf(0x73F, abi=2), "k.co")
    (one,) = objects
    assert not troubles
    assert (one.path, one.kind, one.offset, one.section) == ("k.co", Kind.FILE, 0, None)
    assert (one.processor, one.xnack, one.sramecc) == ("gfx90a", Feature.ON, Feature.ANY)
    assert (one.target, one.code_object_version, one.elf_type) == ("gfx90a:xnack+", 4, "shared")
    assert one.kernels is None


def test_kernels_are_read_when_asked_for(read: Read) -> None:
    ((one,), _) = read(make.elf(kernels=KERNELS), "k.co", kernels=True)
    assert one.kernels == (
        Kernel("gemm", 128, 64, 40, 65536, 16, 64, 3),
        Kernel("fill"),
    )


def test_no_metadata_note_is_not_no_kernels(read: Read) -> None:
    ((without,), _) = read(make.elf(), "k.co", kernels=True)
    ((empty,), _) = read(make.elf(kernels=[]), "k.co", kernels=True)
    assert without.kernels is None
    assert empty.kernels == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "starts with nothing"),
        (b"version https://git-lfs.github.com/spec/v1\n", "named like GPU code"),
        (b"\x7fELF\x02\x01\x01\x40\x03", "ELF identification is cut off"),
        (make.elf()[:40], "ELF header is cut off"),
        (make.elf()[:200], "section header table ends at"),
        (make.elf(0x5FE), "no processor that is known"),
        (make.elf(abi=9), "ABI version 9"),
        (make.elf(machine=243, osabi=0), "ELF machine 243, not 224"),
    ],
)
def test_a_file_named_as_code_that_is_none_is_a_trouble(
    read: Read, data: bytes, reason: str
) -> None:
    objects, (trouble,) = read(data, "k.co")
    assert not objects
    assert trouble.path == "k.co"
    assert reason in trouble.reason


def test_cut_off_anywhere_it_is_a_trouble_with_an_offset_inside(read: Read) -> None:
    whole = make.elf(kernels=KERNELS)
    for length in range(len(whole)):
        objects, troubles = read(whole[:length], "k.hsaco", kernels=True)
        assert not objects, length
        assert len(troubles) == 1
        assert 0 <= troubles[0].offset <= max(length, 58)


def test_code_object_v2_takes_its_processor_from_the_isa_note(read: Read) -> None:
    isa = struct.pack("<HHIII", 4, 7, 9, 0, 10) + b"AMD\0AMDGPU\0"
    sections = (("", 0, b""), (".note", 7, make.note(b"AMD", 3, isa)))
    ((one,), _) = read(make.elf(1, abi=0, sections=sections), "k.co")
    assert (one.processor, one.code_object_version) == ("gfx90a", 2)
    assert one.xnack is Feature.ON


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x81\xaeamdhsa.kernels\x91",
        b"\x81\xaeamdhsa.kernels\x91\x81\xa5.name",
        b"\x81\xaeamdhsa.kernels\xc0",
        b"\x81\xaeamdhsa.kernels\x91\x81\xab.vgpr_count\xa3abc",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0",
    ],
)
def test_a_damaged_metadata_note_is_a_trouble(read: Read, data: bytes) -> None:
    sections = (("", 0, b""), (".note", 7, make.note(b"AMDGPU", 32, data)))
    _, (trouble,) = read(make.elf(sections=sections), "k.co", kernels=True)
    assert "metadata note" in trouble.reason


def test_a_note_longer_than_its_section_is_a_trouble(read: Read) -> None:
    broken = struct.pack("<III", 7, 1 << 31, 32) + b"AMDGPU\0\0"
    sections = (("", 0, b""), (".note", 7, broken))
    _, (trouble,) = read(make.elf(sections=sections), "k.co", kernels=True)
    assert "longer than its section" in trouble.reason


def test_an_absurd_number_of_sections_is_a_trouble(read: Read) -> None:
    data = bytearray(make.elf())
    (table,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<H", data, 60, 0)  # the count is in the first section's size then
    struct.pack_into("<Q", data, table + 32, 1 << 60)
    _, (trouble,) = read(bytes(data), "k.co")
    assert "sections" in trouble.reason
