"""Runs programs in an unpacked image with podman, the copy beneath an overlay of its own.

Which global flags podman needs differs by machine (cgroup manager, runtime, overlays), so they
are found by trying the sets below in order. The image is not copied into podman's storage: its
unpacked file system is the container's root, and what its configuration says is given as options.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import ImageError
from assembler.verify.sandbox.base import Command, Session, host_environment
from assembler.verify.tree import Tree
from assembler.verify.unpack import remove_scratch, unmount

COMMON = ("--cgroup-manager=cgroupfs", "--events-backend=file")
FLAG_SETS: tuple[tuple[tuple[str, ...], str], ...] = (
    (COMMON, ":O"),
    ((*COMMON, "--runtime=runc"), ":O"),
    ((*COMMON, "--runtime=runc", "--storage-driver=vfs"), ""),
)
"""Global flags, and the suffix of --rootfs: ``:O`` keeps mount points out of the unpacked copy."""
MOST_FILES, MOST_PROCESSES = 65536, 4096
"""Limits for the program; podman cannot raise them above its own, which it lowers at its start."""


def _limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def run_flags() -> list[str]:
    """Return what makes the run tight: no network, no capabilities, read-only root, own /tmp."""
    nofile = _limit(resource.RLIMIT_NOFILE, MOST_FILES)
    nproc = _limit(resource.RLIMIT_NPROC, MOST_PROCESSES)
    return [
        "--rm", "--network=none", "--no-hosts", "--read-only", "--read-only-tmpfs=false",
        "--cap-drop=all", "--security-opt=no-new-privileges",
        # The tmpfs has the mode of the folder below it, whatever mode= says.
        "--tmpfs=/tmp:notmpcopyup",
        f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=nproc={nproc}:{nproc}",
    ]  # fmt: skip


@dataclass(frozen=True)
class PodmanSession:
    """One unpacked image, and podman with a storage of its own."""

    engine: tuple[str, ...]
    rootfs: str

    def command_line(self, command: Command) -> list[str]:
        """Return the podman run command line."""
        env = [f"--env={name}={value}" for name, value in command.environment.items()]
        return [
            *self.engine, "run", *run_flags(), *env, f"--timeout={int(command.timeout) + 1}",
            f"--user={command.user[0]}:{command.user[1]}", f"--workdir={command.workdir}",
            "--rootfs", self.rootfs, *command.argv,
        ]  # fmt: skip


def refusal(tree: Tree) -> str:
    """Return why podman cannot run this copy, or nothing: --rootfs takes what follows a colon."""
    root = str(tree.root.absolute())
    return f"cannot take a root folder with a colon in its path ({root})" if ":" in root else ""


@dataclass(frozen=True)
class Podman:
    """podman with the flags that work here."""

    flags: tuple[str, ...]
    suffix: str
    name: str = "podman"
    traceable: bool = True

    @property
    def description(self) -> str:
        """podman, its version and the flags."""
        done = subprocess.run(["podman", "--version"], check=False, capture_output=True, text=True)
        return f"{done.stdout.strip()} {' '.join(self.flags)}"

    @contextmanager
    def session(self, tree: Tree) -> Iterator[Session]:
        """Give podman a storage for the length of the block; nothing of it stays."""
        root = str(tree.root.absolute())
        if trouble := refusal(tree):
            raise ImageError(
                f"podman {trouble}",
                remedy="name another folder with --scratch, or another sandbox with --sandbox",
            )
        # podman refuses storage paths of more than 50 characters.
        with storage() as folder:
            engine = (
                "podman", f"--root={folder}/s", f"--runroot={folder}/r", *self.flags,
            )  # fmt: skip
            try:
                yield PodmanSession(engine, root + self.suffix)
            finally:
                # A program whose time was up may run on under its monitor.
                _quietly(*engine, "rm", "--all", "--force", "--time=0")


@contextmanager
def storage() -> Iterator[Path]:
    """Make a folder for podman's storage and remove it with all that podman mounts there.

    Without root, its files belong to subordinate users whom only podman may act for.
    """
    folder = Path(tempfile.mkdtemp(prefix="asm-"))
    try:
        yield folder
    finally:
        unmount(folder)
        if os.geteuid() != 0:
            _quietly("podman", "unshare", "rm", "-rf", str(folder))
        remove_scratch(folder)


def _quietly(*line: str) -> None:
    subprocess.run(
        line, check=False, capture_output=True, stdin=subprocess.DEVNULL, env=host_environment()
    )


def last_line(text: str) -> str:
    """Return the last line of an engine's complaint, without its log prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else f"no message, user {os.geteuid()}"
