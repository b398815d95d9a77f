"""The reader's inventory against LLVM's own tools, entry by entry."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from assembler.verify.gfx import CodeObject, Feature, Kernel, Kind, inventory
from assembler.verify.gfx.bundle import COMPRESSED_MAGIC

GFX_FLAG = re.compile(r"0x([0-9a-f]+)")
TYPES = {"REL": "relocatable", "DYN": "shared", "EXEC": "executable"}


def objects_in(path: Path, **options: bool) -> list[CodeObject]:
    items = list(inventory(path, **options))
    assert all(isinstance(item, CodeObject) for item in items), items
    return [item for item in items if isinstance(item, CodeObject)]


def header_of(llvm: Any, path: Path) -> dict[str, str]:
    text = llvm.run("llvm-readelf", "-h", path)
    return {
        k.strip(): v.strip() for k, v in (x.split(":", 1) for x in text.splitlines() if ":" in x)
    }


def feature(flags: str, name: str) -> Feature:
    """llvm-readelf prints the feature alone for any, with - for off and + for on."""
    words = [word.strip() for word in flags.split(",")]
    for sign, state in (("", Feature.ANY), ("-", Feature.OFF), ("+", Feature.ON)):
        if f"{name}{sign}" in words:
            return state
    return Feature.UNSUPPORTED


def same_as_readelf(llvm: Any, one: CodeObject, path: Path) -> None:
    header = header_of(llvm, path)
    flags = header["Flags"]
    assert one.flags == int(GFX_FLAG.search(flags).group(1), 16)
    assert one.processor in [word.strip() for word in flags.split(",")]
    assert one.xnack is feature(flags, "xnack")
    assert one.sramecc is feature(flags, "sramecc")
    assert one.elf_type == TYPES[header["Type"].split()[0]]
    assert "AMDGPU" in header["Machine"]
    assert one.code_object_version == {"2": 4, "3": 5, "4": 6}[header["ABI Version"]]
    assert one.size == path.stat().st_size


def unpacked_by_objdump(llvm: Any, path: Path, folder: Path) -> list[tuple[str, Path]]:
    """Return (entry ID, file) of each device entry, in the order of bundles."""
    folder.mkdir()
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    llvm.run("llvm-objdump", "--offloading", copy.name, cwd=folder)
    found = []
    for place in folder.iterdir():
        match = re.fullmatch(re.escape(path.name) + r"\.(\d+)\.(.+)", place.name)
        if match and not match.group(2).startswith("host-"):
            found.append((int(match.group(1)), match.group(2), place))
    return [(name, place) for _, name, place in sorted(found)]


def unbundled(llvm: Any, packed: bytes, entry: str, folder: Path) -> Path:
    """Return an entry of the compressed bundle that ``packed`` starts with.

    clang-offload-bundler unpacks it, after the bundle was cut out: what follows would be an error
    for it (llvm-project#182579).
    """
    folder.mkdir(exist_ok=True)
    whole, out = folder / "one.hipfb", folder / "entry.co"
    (version,) = struct.unpack_from("<H", packed, 4)
    (total,) = struct.unpack_from("<Q" if version == 3 else "<I", packed, 8)
    whole.write_bytes(packed[:total])
    llvm.run(
        "clang-offload-bundler", "-unbundle", "-type=o", f"-input={whole}", f"-targets={entry}",
        f"-output={out}",
    )  # fmt: skip
    return out


def compare(llvm: Any, path: Path, folder: Path, expected: int) -> list[CodeObject]:
    """Compare with llvm-objdump, which lists compressed entries, but (llvm-project#192729) writes
    packed bytes for them; those come from clang-offload-bundler."""
    ours = objects_in(path)
    theirs = unpacked_by_objdump(llvm, path, folder)
    assert len(ours) == len(theirs) == expected
    data = path.read_bytes()
    unmatched = list(theirs)
    for one in ours:
        fits = [
            pair
            for pair in unmatched
            if pair[0] == one.bundle_id and pair[1].stat().st_size == one.size
        ]
        assert fits, (one, unmatched)
        if one.compression is None:
            match = [p for p in fits if p[1].read_bytes() == data[one.offset :][: one.size]]
            unmatched.remove(match[0])
            same_as_readelf(llvm, one, match[0][1])
        else:
            unmatched.remove(fits[0])
            assert data[one.offset :].startswith(COMPRESSED_MAGIC)
            theirs_bytes = unbundled(llvm, data[one.offset :], one.bundle_id, folder / "cut")
            same_as_readelf(llvm, one, theirs_bytes)
    assert not unmatched
    return ours


@pytest.mark.parametrize("kind", ["shared", "object"])
@pytest.mark.parametrize("packed", [(), ("--offload-compress",)])
def test_fat_binaries(llvm: Any, build: Any, tmp_path: Path, kind: str, packed: Any) -> None:
    path = build(kind, options=packed)
    ours = compare(llvm, path, tmp_path / "x", 4)
    assert sorted(one.target for one in ours) == ["gfx1201", "gfx90a:xnack+", "gfx942", "gfx950"]
    assert {one.section for one in ours} == {".hip_fatbin"}
    assert {one.compression for one in ours} == ({"zstd"} if packed else {None})


@pytest.mark.parametrize("packed", [(), ("--offload-compress",)])
def test_several_bundles_in_one_section(llvm: Any, build: Any, tmp_path: Path, packed: Any) -> None:
    path = build("shared", ("gfx942", "gfx950"), ("one", "two", "three"), packed)
    ours = compare(llvm, path, tmp_path / "x", 6)
    assert len({one.section for one in ours}) == 1


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_compressed_bundles_by_version(
    llvm: Any, build: Any, tmp_path: Path, version: int, method: str
) -> None:
    """The bundler of LLVM 22 packs with zstd alone; zlib ones are made of its plain bundle."""
    device = build("device", ("gfx942",))
    entry = "hipv4-amdgcn-amd-amdhsa--gfx942"
    out = tmp_path / "k.hipfb"
    pack = ("-compress",) if method == "zstd" else ()
    llvm.run(
        "clang-offload-bundler", "-type=o", f"-targets=host-x86_64-unknown-linux-gnu-,{entry}",
        "-input=/dev/null", f"-input={device}", f"-output={out}", *pack,
        COMPRESSED_BUNDLE_FORMAT_VERSION=str(version),
    )  # fmt: skip
    if method == "zlib":
        plain = out.read_bytes()
        digest = int.from_bytes(hashlib.md5(plain).digest()[:8], "little")
        data = zlib.compress(plain)
        head = (
            struct.pack("<HHIIQ", 2, 0, 24 + len(data), len(plain), digest)
            if version == 2
            else struct.pack("<HHQQQ", 3, 0, 32 + len(data), len(plain), digest)
        )
        out.write_bytes(COMPRESSED_MAGIC + head + data)
    assert struct.unpack_from("<H", out.read_bytes(), 4) == (version,)
    (one,) = objects_in(out)
    assert (one.compression, one.kind) == (method, Kind.COMPRESSED_BUNDLE)
    theirs = unbundled(llvm, out.read_bytes(), entry, tmp_path / "cut")
    assert theirs.read_bytes() == device.read_bytes()
    same_as_readelf(llvm, one, theirs)


@pytest.mark.parametrize("kind", ["device", "device object"])
@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "gfx90a:xnack+", "gfx90a:sramecc-:xnack-",
                                    "gfx1201"])  # fmt: skip
def test_bare_code_objects(llvm: Any, build: Any, kind: str, version: int, target: str) -> None:
    path = build(kind, (target,), options=(f"-mcode-object-version={version}",))
    (one,) = objects_in(path, kernels=True)
    assert one.target == target
    assert one.code_object_version == version
    same_as_readelf(llvm, one, path)
    assert one.kernels == kernels_by_readelf(llvm, path)


@pytest.mark.parametrize("target", ["gfx9-generic", "gfx9-4-generic", "gfx10-3-generic",
                                    "gfx11-generic", "gfx12-generic"])  # fmt: skip
def test_generic_code_objects(llvm: Any, build: Any, target: str) -> None:
    path = build("device", (target,), options=("-mcode-object-version=6",))
    (one,) = objects_in(path)
    assert (one.processor, one.generic_version) == (target, 1)
    same_as_readelf(llvm, one, path)


def kernels_by_readelf(llvm: Any, path: Path) -> tuple[Any, ...]:
    text = llvm.run("llvm-readelf", "-n", path)
    (block,) = re.findall(r"AMDGPU Metadata:\n\s*---\n(.*?)\n\.\.\.", text, re.DOTALL)
    return tuple(
        Kernel(
            name=row[".name"],
            vgprs=row[".vgpr_count"],
            agprs=row.get(".agpr_count"),
            sgprs=row[".sgpr_count"],
            lds=row[".group_segment_fixed_size"],
            scratch=row[".private_segment_fixed_size"],
            wavefront=row[".wavefront_size"],
            vgpr_spills=row[".vgpr_spill_count"],
        )
        for row in yaml.safe_load(block)["amdhsa.kernels"]
    )


def test_kernels_of_compressed_bundles(llvm: Any, build: Any, tmp_path: Path) -> None:
    path = build("shared", options=("--offload-compress",))
    data = path.read_bytes()
    for one in objects_in(path, kernels=True):
        theirs = unbundled(llvm, data[one.offset :], one.bundle_id, tmp_path / "cut")
        assert one.kernels == kernels_by_readelf(llvm, theirs)
        assert len(one.kernels) == 2


def test_static_libraries(llvm: Any, build: Any, tmp_path: Path) -> None:
    library = tmp_path / "libk.a"
    members = [build("object", ("gfx942",), (name,)) for name in ("one", "two")]
    llvm.run("llvm-ar", "rc", library, *members)
    assert [one.target for one in objects_in(library)] == ["gfx942", "gfx942"]
    assert {one.path for one in objects_in(library)} == {member.name for member in members}


@pytest.mark.parametrize("targets", [("gfx942",), ("gfx942", "gfx90a:xnack+", "gfx1201")])
def test_offload_binaries(llvm: Any, build: Any, targets: tuple[str, ...]) -> None:
    path = build("object", targets, options=("-fgpu-rdc", "--offload-new-driver"))
    ours = objects_in(path)
    listed = llvm.run("llvm-objdump", "--offloading", path)
    assert len(re.findall(r"OFFLOADING IMAGE", listed)) == len(ours) == len(targets)
    arches = re.findall(r"^arch +(\S+)", listed, re.MULTILINE)
    assert [one.bundle_id.partition("--")[2] for one in ours] == arches
    for one in ours:
        image = path.read_bytes()[one.offset :][: one.size]
        place = llvm.folder / "image.bc"
        place.write_bytes(image)
        assert "target triple" in llvm.run("llvm-dis", place, "-o", "-")


def test_relocatable_device_code(llvm: Any, build: Any) -> None:
    """With -fgpu-rdc the object holds LLVM bitcode, whose target only the section's name says."""
    path = build("object", ("gfx942",), options=("-fgpu-rdc", "--no-offload-new-driver"))
    (one,) = objects_in(path)
    assert one.processor == "gfx942"
    names = llvm.run("llvm-readelf", "-S", "-W", path)
    assert one.section in names
