"""Runs programs in an image with podman, from a store of its own beside the unpacked copy.

Which global flags podman needs differs by machine (cgroup manager, runtime, storage driver), so
they are found by trying the sets below in order. Limits are set to this process's own, since
podman's defaults may be above what the machine permits.
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

from assembler.digest import sha256_bytes
from assembler.errors import ImageError
from assembler.verify.sandbox.base import Command, Session, host_environment
from assembler.verify.tree import Tree
from assembler.verify.unpack import remove_scratch, unmount, unmount_below

FLAG_SETS: tuple[tuple[str, ...], ...] = (
    ("--cgroup-manager=cgroupfs", "--events-backend=file"),
    ("--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=runc"),
    (
        "--cgroup-manager=cgroupfs",
        "--events-backend=file",
        "--runtime=runc",
        "--storage-driver=vfs",
    ),
)
TAG = "localhost/under-verification"


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
        "--rm", "--pull=never", "--network=none", "--read-only", "--read-only-tmpfs=false",
        "--cap-drop=all", "--security-opt=no-new-privileges",
        "--tmpfs=/tmp", f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=nproc={nproc}:{nproc}",
    ]  # fmt: skip


@dataclass(frozen=True)
class PodmanSession:
    """An image in podman's store; environment and user come from the image's configuration."""

    engine: tuple[str, ...]
    image: str

    def command_line(self, command: Command) -> list[str]:
        """Return the podman run command line."""
        extra = [f"--env={name}={value}" for name, value in command.extra_env.items()]
        return [
            *self.engine, "run", *run_flags(), *extra, f"--timeout={int(command.timeout) + 1}",
            f"--workdir={command.workdir}", f"--entrypoint={command.argv[0]}",
            self.image, *command.argv[1:],
        ]  # fmt: skip


@dataclass(frozen=True)
class Podman:
    """podman with the flags that work here."""

    flags: tuple[str, ...]
    name: str = "podman"
    traceable: bool = True

    @property
    def description(self) -> str:
        """podman, its version and the flags."""
        done = subprocess.run(["podman", "--version"], check=False, capture_output=True, text=True)
        return f"{done.stdout.strip()} {' '.join(self.flags)}"

    @contextmanager
    def session(self, tree: Tree) -> Iterator[Session]:
        """Pull the image's layout into a store beside its unpacked copy (kept with the copy)."""
        store = tree.root.parent / "podman"
        engine = ("podman", f"--root={store}", f"--runroot={run_folder(store)}", *self.flags)
        if _call(engine, "image", "exists", TAG).returncode != 0:
            pulled = _call(engine, "pull", "--quiet", source(tree, run_folder(store)))
            if pulled.returncode != 0:
                raise ImageError(
                    f"podman does not accept {tree.label} ({last_line(pulled.stderr)})",
                    remedy="make the image again, or choose another sandbox with --sandbox",
                )
            _call(engine, "tag", pulled.stdout.strip().splitlines()[-1], TAG)
        try:
            yield PodmanSession(engine, TAG)
        finally:
            # A program whose time was up may run on under its monitor.
            _call(engine, "rm", "--all", "--force", "--time=0")
            remove_scratch(run_folder(store))
            _release(store)
            unmount_below(store)  # podman leaves its overlay folder mounted


def _release(store: Path) -> None:
    """Leave nothing that would keep its owner from removing the store.

    podman keeps the store's folder mounted; without root, its files belong to subordinate users,
    so the store has to go at once.
    """
    unmount(store)
    if os.geteuid() != 0:
        subprocess.run(
            ["podman", "unshare", "rm", "-rf", str(store)],
            check=False,
            capture_output=True,
            env=host_environment(),
        )


def run_folder(store: Path) -> Path:
    """Return podman's folder for what lives as long as a run.

    Its path may have at most 50 characters and belongs to the store for ever (podman records it),
    so it is named by the store's path, in the machine's folder for such things.
    """
    name = f"asm-{os.getuid()}-{sha256_bytes(str(store).encode())[:8]}"
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ImageError(
            f"{folder} belongs to somebody else", remedy="remove it or set TMPDIR to another folder"
        )
    return folder


def source(tree: Tree, folder: Path) -> str:
    """Return the image's place as containers-transports(5) spells it.

    That spelling has no room for spaces and colons in paths, so a link in ``folder`` stands in.
    """
    kind = "oci" if tree.origin.is_dir() else "oci-archive"
    name = tree.image.reference if tree.image is not None else None
    link = folder / "image"
    link.unlink(missing_ok=True)
    link.symlink_to(tree.origin.absolute())
    return f"{kind}:{link}" + (f":{name}" if name else "")


def _call(engine: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*engine, *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=host_environment(),
    )


def last_line(text: str) -> str:
    """Return the last line of an engine's complaint, without its log prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else f"no message, user {os.geteuid()}"
