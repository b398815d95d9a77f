"""The machine itself: system, Python, disk, memory, and programs that commands call."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from assembler.doctor.model import Check
from assembler.stack import Profile
from assembler.workspace import Workspace

GB = 10**9
NEEDED_DISK = {"cpu": 12 * GB, "rocm": 60 * GB}
"""Sources, packages, stages, images and their unpacked copy in one clean run. cpu: measured, with
room for its largest stage; rocm: estimated from the sizes that its wheels unpack to. Other profiles
are held against the largest."""
NEEDED_MEMORY = 4 * GB
NEEDED_TEMPORARY = 2 * GB
"""The largest members of wheels, unpacked one at a time."""


def look(workspace: Workspace, profile: Profile) -> Iterator[Check]:
    """Yield the checks of the machine."""
    yield _system()
    yield _python()
    yield _venv()
    yield _git()
    yield from _disk(workspace, profile)
    yield _temporary()
    yield _memory()


def _system() -> Check:
    seen = f"{platform.system()} {platform.machine()}, {_distribution()}"
    fits = platform.system() == "Linux" and platform.machine() == "x86_64"
    return Check(
        id="system",
        status="ok" if fits else "missing",
        found=seen,
        needed_for="everything",
        required=True,
        remedy="" if fits else "use Linux on x86-64; images and packages are made for it alone",
    )


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"


def _python() -> Check:
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    in_venv = sys.prefix != sys.base_prefix
    words = [platform.python_version(), "in a virtual environment" if in_venv else sys.executable]
    if managed and not in_venv:
        words.append("externally managed")
    return Check(
        id="python",
        status="ok" if sys.version_info >= (3, 11) else "missing",
        found=", ".join(words),
        needed_for="everything",
        required=True,
        remedy="" if sys.version_info >= (3, 11) else "install Python 3.11 or newer",
    )


def _venv() -> Check:
    lacking = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    here = sys.prefix != sys.base_prefix
    return Check(
        id="venv",
        status="missing" if lacking and not here else "ok",
        found=f"no module {' and '.join(lacking)}" if lacking else "venv and ensurepip are there",
        needed_for="setting the project up",
        required=True,
        remedy="apt-get install python3-venv" if lacking and not here else "",
    )


def version_of(program: str, *arguments: str) -> str | None:
    """Return the first line that a program says of its version, or None when it does not run."""
    if shutil.which(program) is None:
        return None
    try:
        done = subprocess.run(
            [program, *(arguments or ("--version",))],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _git() -> Check:
    version = version_of("git")
    return Check(
        id="git",
        status="ok" if version else "missing",
        found=version or "not installed",
        needed_for="sources that are git commits (`--source atom=URL`)",
        required=True,
        remedy="" if version else "apt-get install git",
    )


def _disk(workspace: Workspace, profile: Profile) -> Iterator[Check]:
    needed = NEEDED_DISK.get(profile.name, max(NEEDED_DISK.values()))
    seen: set[int] = set()
    looked: set[Path] = set()
    for folder in (workspace.build, workspace.store, workspace.channel):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        if place not in looked and not os.access(place, os.W_OK):
            yield Check(
                id="disk-writable",
                status="missing",
                found=f"{place} cannot be written",
                needed_for="everything",
                required=True,
                remedy="use a checkout of your own, and put store and channel elsewhere with "
                "ASSEMBLER_STORE and -c",
            )
        looked.add(place)
        device = place.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(place).free
        already = workspace.lock_file(profile).exists() and workspace.image_layout(profile).exists()
        short = free < needed and not already
        yield Check(
            id="disk",
            status="limited" if short else "ok",
            found=f"{free / GB:.0f} GB free at {place}",
            needed_for=f"profile {profile.name}, some {needed / GB:.0f} GB for a first run",
            required=True,
            remedy=f"free {(needed - free) / GB:.0f} GB, or put the store elsewhere with "
            "ASSEMBLER_STORE"
            if short
            else "",
        )


def _temporary() -> Check:
    """Judge where pip, git and the readers of archives put what they unpack."""
    wanted = os.environ.get("TMPDIR", "")
    place = Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    ignored = bool(wanted) and Path(wanted).absolute() != place
    short = free < NEEDED_TEMPORARY
    remedy = f"free {(NEEDED_TEMPORARY - free) / GB:.1f} GB, or set TMPDIR to another folder"
    return Check(
        id="temporary-folder",
        status="limited" if short or ignored else "ok",
        found=f"{free / GB:.0f} GB free at {place}"
        + (f", since TMPDIR ({wanted}) cannot be used" if ignored else ""),
        needed_for="fetch, gfx and verify (what they unpack for a moment)",
        remedy=remedy if short else "set TMPDIR to a folder that can be written" if ignored else "",
    )


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        row = next(line for line in lines if line.startswith("MemAvailable"))
        available = int(row.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        available = total
    little = available < NEEDED_MEMORY
    return Check(
        id="memory",
        status="limited" if little else "ok",
        found=f"{available / GB:.0f} of {total / GB:.0f} GB available, {os.cpu_count()} cores",
        needed_for="build (parallel compression of large packages)",
        remedy="pass --jobs 1 to build" if little else "",
    )
