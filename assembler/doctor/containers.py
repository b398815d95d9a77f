"""Ways to run an image here, tried and not only looked for, and tools around images."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from assembler.doctor.machine import version_of
from assembler.doctor.model import Check
from assembler.errors import MissingToolError
from assembler.image.engine import find_engine
from assembler.verify.sandbox import Trial, try_all
from assembler.verify.sandbox.base import strace_works

INSTALL = {
    "podman": "apt-get install podman runc",
    "docker": "install docker and start its daemon",
    "bwrap": "apt-get install bubblewrap",
    "chroot": "run as root, or permit unprivileged user namespaces",
}
OPTIONAL = {
    "skopeo": "copying images to registries",
    "umoci": "unpacking images by hand",
    "conda": "installing from the channel with conda",
    "mamba": "installing from the channel with mamba",
    "micromamba": "installing from the channel with micromamba",
    "pixi": "calling the commands as pixi tasks",
}
APT = ("skopeo", "umoci")


def look() -> Iterator[Check]:
    """Yield the checks of sandboxes, namespaces, strace and optional tools."""
    trials = try_all()
    works = [trial for trial in trials if trial.sandbox is not None]
    for trial in trials:
        yield _sandbox(trial, others=bool(works))
    yield Check(
        id="sandbox",
        status="ok" if works else "missing",
        found=f"smokes run in {works[0].name}" if works else "no program can be run in an image",
        needed_for="verify (the smoke gate)",
        required=True,
        remedy="" if works else INSTALL["bwrap"],
    )
    yield _engine()
    yield _namespaces()
    traced = strace_works()
    yield Check(
        id="strace",
        status="ok" if traced else "missing",
        found="traces" if traced else "not installed, or may not trace",
        needed_for="verify (the list of programs that smokes start)",
        remedy="" if traced else "apt-get install strace",
    )
    for program, use in OPTIONAL.items():
        version = version_of(program)
        yield Check(
            id=program,
            status="ok" if version else "missing",
            found=version or "not installed",
            needed_for=f"{use} (optional)",
            remedy=""
            if version
            else (f"apt-get install {program}" if program in APT else f"see {program}'s own pages"),
        )


def _sandbox(trial: Trial, *, others: bool) -> Check:
    works = trial.sandbox is not None
    return Check(
        id=f"sandbox-{trial.name}",
        status="ok" if works else "missing",
        found=trial.sandbox.description if trial.sandbox is not None else trial.trouble,
        needed_for="verify --sandbox " + trial.name + (" (one is enough)" if others else ""),
        remedy="" if works else INSTALL[trial.name],
    )


def _engine() -> Check:
    try:
        engine = find_engine()
        works, found, remedy = True, f"{engine.name} {engine.version} answers", ""
    except MissingToolError as error:
        works, found, remedy = False, error.saw, error.remedy
    return Check(
        id="engine",
        status="ok" if works else "missing",
        found=found,
        needed_for="load (optional; push and all gates need no engine)",
        remedy=remedy,
    )


def _namespaces() -> Check:
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "true"],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return Check(
            id="user-namespaces",
            status="limited",
            found=f"unshare cannot be run ({error.strerror})",
            needed_for="verify without root",
            remedy="apt-get install util-linux",
        )
    try:
        most = Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii").strip()
    except OSError:
        most = "0"
    works = done.returncode == 0
    return Check(
        id="user-namespaces",
        status="ok" if works else "limited",
        found=f"work (at most {most})" if works else (done.stderr.strip() or "refused"),
        needed_for="verify without root",
        remedy="" if works else "sysctl -w user.max_user_namespaces=10000, or use root",
    )
