"""AMD GPUs: whether programs in a container could use them, and with which flags."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterator
from pathlib import Path

from assembler.doctor.model import Check

KFD = Path("/dev/kfd")
RENDER = Path("/dev/dri")
NODES = Path("/sys/class/kfd/kfd/topology/nodes")
DRIVER = Path("/sys/module/amdgpu/version")
_VERSION = re.compile(r"^gfx_target_version (\d+)$", re.MULTILINE)


def look() -> Iterator[Check]:
    """Yield the check of the GPU; none is needed for anything but running the stack on it."""
    if not KFD.exists():
        yield Check(
            id="amd-gpu",
            status="missing",
            found="no /dev/kfd",
            needed_for="running models; building, locking, images and all gates go without",
            remedy="use a machine with an AMD GPU and its kernel driver",
        )
        return
    devices = sorted(RENDER.glob("renderD*")) if RENDER.is_dir() else []
    groups = sorted({path.stat().st_gid for path in (KFD, *devices)})
    access = all(os.access(path, os.R_OK | os.W_OK) for path in (KFD, *devices))
    flags = "--device /dev/kfd --device /dev/dri " + " ".join(
        f"--group-add {group}" for group in groups
    )
    yield Check(
        id="amd-gpu",
        status="ok" if access else "limited",
        found=f"{', '.join(read_targets(NODES)) or 'no GPU node'}; driver {_driver()}; "
        f"groups {', '.join(map(_group, groups))}; in containers: {flags}",
        needed_for="running models",
        remedy="" if access else f"join the groups {', '.join(map(_group, groups))}",
    )


def read_targets(nodes: Path) -> tuple[str, ...]:
    """Return the LLVM names of the GPUs that the kernel lists, one a GPU.

    ``gfx_target_version`` is major * 10000 + minor * 100 + stepping; CPUs have 0. In the name,
    minor and stepping are one hexadecimal digit each (90010 is gfx90a).
    """
    names: list[str] = []
    for properties in sorted(nodes.glob("*/properties")):
        try:
            found = _VERSION.search(properties.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError):
            continue
        version = int(found[1]) if found else 0
        if version:
            major, minor, stepping = version // 10000, version // 100 % 100, version % 100
            names.append(f"gfx{major}{minor:x}{stepping:x}")
    return tuple(names)


def _driver() -> str:
    try:
        return DRIVER.read_text(encoding="ascii").strip()
    except OSError:
        return f"of Linux {os.uname().release}"


def _group(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return str(number)
