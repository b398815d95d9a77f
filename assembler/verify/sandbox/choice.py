"""Which sandbox works here: each is tried with a tiny image, in the order of preference."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import AssemblerError, ConfigError, MissingToolError
from assembler.verify.sandbox import podman, probe
from assembler.verify.sandbox.base import Command, Sandbox, run
from assembler.verify.sandbox.bubblewrap import Bubblewrap
from assembler.verify.sandbox.chroot import Chroot
from assembler.verify.sandbox.docker import Docker
from assembler.verify.sandbox.podman import Podman
from assembler.verify.tree import Tree
from assembler.verify.unpack import remove_scratch

NAMES = ("podman", "docker", "bwrap", "chroot")
PROBE_TIMEOUT = 30.0


@dataclass(frozen=True)
class Trial:
    """How a sandbox did: ``sandbox`` when it works, else the reason why it does not."""

    name: str
    sandbox: Sandbox | None
    trouble: str = ""


def choose(name: str | None = None, tree: Tree | None = None) -> Sandbox:
    """Return the named sandbox, or the first that works; MissingToolError when there is none.

    Sandboxes that cannot take ``tree`` are passed over unless one is named: that one says why.
    """
    if name is not None and name not in NAMES:
        raise ConfigError(f"{name!r} is no sandbox", remedy=f"choose one of {', '.join(NAMES)}")
    troubles: list[str] = []
    names = [name] if name else list(NAMES)
    if name is None and tree is not None and (trouble := podman.refusal(tree)):
        names.remove("podman")
        troubles.append(f"podman: {trouble}")
    for trial in _trials(names):
        if trial.sandbox is not None:
            return trial.sandbox
        troubles.append(f"{trial.name}: {trial.trouble}")
    raise MissingToolError(
        f"no program can be run in an image here ({'; '.join(troubles)})",
        remedy="install bubblewrap or podman, or permit unprivileged user namespaces",
    )


def try_all() -> tuple[Trial, ...]:
    """Try every sandbox (for ``assembler doctor``)."""
    return tuple(_trials(list(NAMES)))


def _trials(names: list[str]) -> Iterator[Trial]:
    folder = Path(tempfile.mkdtemp(prefix="assembler-probe-"))
    try:
        tree = probe.write_tree(folder)
        for name in names:
            candidates, trouble = _candidates(name)
            for candidate in candidates:
                trouble = _try(candidate, tree)
                if not trouble:
                    yield Trial(name, candidate)
                    break
            else:
                yield Trial(name, None, trouble)
    finally:
        remove_scratch(folder)


def _candidates(name: str) -> tuple[tuple[Sandbox, ...], str]:
    """Return what to try for a name, and why there is nothing to try."""
    if name == "chroot":
        return (Chroot(),), ""
    if shutil.which(name) is None:
        return (), f"{name} is not installed"
    if name == "bwrap":
        return (Bubblewrap(),), ""
    if name == "docker":
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return ((Docker(),), "") if done.returncode == 0 else ((), "its daemon does not answer")
    return tuple(Podman(*flags) for flags in podman.FLAG_SETS), ""


def _try(sandbox: Sandbox, tree: Tree) -> str:
    """Run the probe; return what went wrong, or nothing."""
    command = Command(argv=(f"/{probe.PROGRAM}",), timeout=PROBE_TIMEOUT)
    try:
        with sandbox.session(tree) as session:
            done = run(session, command)
    except (AssemblerError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.exit_code == probe.STATUS:
        return ""
    if done.exit_code is None:
        return f"a tiny program did not end within {PROBE_TIMEOUT:.0f} s"
    return podman.last_line(done.output)
