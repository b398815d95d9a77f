"""Where pinned files come from: pip's configured index, and the machine's apt sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from assembler.doctor.model import Check
from assembler.errors import AssemblerError, MissingToolError
from assembler.sources.apt_sources import for_suite, read_machine
from assembler.stack import Profile
from assembler.workspace import Workspace

PROBE = "installer"
"""A small package (0.5 MB) of the project's own dependencies."""
TIMEOUT = 45


def look(workspace: Workspace, profile: Profile) -> Iterator[Check]:
    """Yield the checks of sources; a filled store makes up for what cannot be reached."""
    filled = workspace.sources(profile).is_dir() and workspace.store.is_dir()
    yield _pip(filled=filled)
    yield _apt(profile, filled=filled)


def _pip(*, filled: bool) -> Check:
    with tempfile.TemporaryDirectory(prefix="assembler-doctor-") as folder:
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        line += ["--disable-pip-version-check", "--retries", "1", "--dest", folder, PROBE]
        try:
            done = subprocess.run(
                line,
                check=False,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
            )
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            reached = done.returncode == 0
        except subprocess.TimeoutExpired:
            said, reached = f"no answer within {TIMEOUT} s", False
    return Check(
        id="pip-index",
        status="ok" if reached else ("limited" if filled else "missing"),
        found="pip reaches its index" if reached else f"pip cannot download {PROBE}: {said}",
        needed_for="fetch (PyPI wheels)",
        required=True,
        remedy=""
        if reached
        else "configure pip (index-url, proxy or find-links), or copy a filled store here and set "
        "ASSEMBLER_STORE",
    )


def _apt(profile: Profile, *, filled: bool) -> Check:
    """Judge the apt sources and programs; nothing is downloaded, that is for fetch to do."""
    lacking = [name for name in ("apt-get", "apt-cache") if shutil.which(name) is None]
    suite = profile.image.base.suite
    try:
        if lacking:
            raise MissingToolError(f"no {' and no '.join(lacking)}", remedy="run it on Debian")
        found = for_suite(read_machine(), suite)
        suites = sorted({name for source in found for name in source.suites})
        words, reached, remedy = f"Debian sources, which give {', '.join(suites)}", True, ""
    except AssemblerError as error:
        words, reached, remedy = error.saw, False, error.remedy
    return Check(
        id="apt",
        status="ok" if reached else ("limited" if filled else "missing"),
        found=words,
        needed_for="fetch (Debian packages of Python and of the image's base)",
        required=True,
        remedy=remedy,
    )
