"""A device package's own test: what is installed holds code for its target alone. Needs no GPU.

It runs where only the package and what it needs are installed, so it reads ELF headers, the tables
of offload bundles and those of kpack archives itself. What it cannot look into, compressed bundles,
was checked when the package was built. The target, or the family, ends the package's name.
"""

import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

AMDGPU = 224  # e_machine
BUNDLE, COMPRESSED, KPACK = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"KPAK"
ENTRY = struct.Struct("<QQQ")
MOST_ENTRIES = 4096
ENTRY_ID = re.compile(rb"[a-z0-9]+-amdgcn-amd-amdhsa-[a-z]*-(gfx[0-9a-z-]+)")
NAMED = re.compile(r"gfx[0-9a-z]+")
# EF_AMDGPU_MACH of the "User Guide for AMDGPU Backend", by the target's name without "gfx".
MACHINES = {
    "900": 0x2C, "902": 0x2D, "904": 0x2E, "906": 0x2F, "908": 0x30, "909": 0x31, "90c": 0x32,
    "90a": 0x3F, "942": 0x4C, "950": 0x4F,
    "1010": 0x33, "1011": 0x34, "1012": 0x35, "1013": 0x42,
    "1030": 0x36, "1031": 0x37, "1032": 0x38, "1033": 0x39, "1034": 0x3E, "1035": 0x3D,
    "1036": 0x45,
    "1100": 0x41, "1101": 0x46, "1102": 0x47, "1103": 0x44, "1150": 0x43, "1151": 0x4A,
    "1152": 0x55, "1153": 0x58,
    "1200": 0x48, "1201": 0x4E, "1250": 0x49, "1251": 0x5A,
}  # fmt: skip
NAMES = {number: f"gfx{name}" for name, number in MACHINES.items()}


def bundled(data: bytes, start: int) -> Iterator[str]:
    """Yield the targets of the bundle at ``start``; none when no table follows the magic."""
    place = start + len(BUNDLE)
    (count,) = struct.unpack_from("<Q", data.ljust(place + 8, b"\0"), place)
    place += 8
    for _entry in range(count if count <= MOST_ENTRIES else 0):
        if place + ENTRY.size > len(data):
            return
        length = ENTRY.unpack_from(data, place)[2]
        name = data[place + ENTRY.size : place + ENTRY.size + length]
        if match := ENTRY_ID.fullmatch(name.partition(b":")[0]):
            yield match[1].decode()
        place += ENTRY.size + length


def targets(data: bytes) -> Iterator[str]:
    """Yield the target of each piece of GPU code in a file; ``?`` for a compressed bundle."""
    if data[:4] == b"\x7fELF" and struct.unpack_from("<H", data, 18)[0] == AMDGPU:
        machine = struct.unpack_from("<I", data, 48)[0] & 0xFF
        yield NAMES.get(machine, f"machine {machine:#x}")
        return
    if data[:4] == KPACK:
        (contents,) = struct.unpack_from("<Q", data, 8)
        for name in set(re.findall(rb"\xa6gfx[0-9a-f]{3}|\xa7gfx[0-9a-f]{4}", data[contents:])):
            yield name[1:].decode()
        return
    if data[:4] == COMPRESSED:
        yield "?"
    start = data.find(BUNDLE)
    while start >= 0:
        yield from bundled(data, start)
        start = data.find(BUNDLE, start + 1)


def fits(found: str, wanted: str) -> bool:
    """Tell whether code for a target may be in the package of a target or a family."""
    family = f"gfx{found.removeprefix('gfx')[:-2]}"
    return found == wanted or (wanted not in NAMES.values() and family == wanted)


def main() -> None:
    """Run the test."""
    name, prefix = os.environ["PKG_NAME"], Path(os.environ["PREFIX"])
    wanted = name.rpartition("-")[2]
    [record] = prefix.glob(f"conda-meta/{name}-{os.environ['PKG_VERSION']}-*.json")
    files = json.loads(record.read_text(encoding="utf-8"))["files"]
    faults, counts = [], {"code": 0, "compressed": 0, "named": 0}
    for path in files:
        file = prefix / path
        if not file.is_file():
            faults.append(f"{path} is not there")
            continue
        for found in targets(file.read_bytes()):
            counts["compressed" if found == "?" else "code"] += 1
            if found != "?" and not fits(found, wanted):
                faults.append(f"{path} holds code for {found}")
        for spelled in NAMED.findall(file.name):
            # names go on (compute units), or stop at a family
            known = max(
                (one for one in NAMES.values() if spelled.startswith(one)), key=len, default=""
            )
            counts["named"] += bool(known)
            if known and not fits(known, wanted):
                faults.append(f"{path} is named after {known}")
    if faults:
        sys.exit(f"{len(faults)} of {len(files)} files are not right for {wanted}: {faults[0]}")
    if not counts["code"] and not counts["compressed"]:
        print(f"not-run: {name} holds no code at all")
    else:
        print(
            f"{name}: {counts['code']} pieces of code for {wanted}, and no other; "
            f"{counts['compressed']} compressed, {counts['named']} files named after it"
        )


if __name__ == "__main__":
    main()
