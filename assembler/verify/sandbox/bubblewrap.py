"""Runs programs in an unpacked image with bubblewrap.

As root the program is started through setpriv, so that it really is the image's user; where that
user cannot reach the scratch folder, bubblewrap's own user namespace stands in for it and the
description says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assembler.verify.sandbox.base import Command, Session
from assembler.verify.tree import Tree

NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session")


@dataclass(frozen=True)
class BubblewrapSession:
    """One unpacked image."""

    root: Path

    def command_line(self, command: Command) -> list[str]:
        """Return the bwrap command line: read-only root, /proc, /dev, tmpfs on /tmp, no network."""
        uid, gid = command.user
        line = [
            *_become(uid, gid, self.root), "bwrap", *NAMESPACES,
            "--uid", str(uid), "--gid", str(gid), "--hostname", "clean-image",
            "--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp",  # noqa: S108
            "--chdir", command.workdir, "--clearenv",
        ]  # fmt: skip
        for name, value in command.environment.items():
            line += ["--setenv", name, value]
        return [*line, "--", *command.argv]


def _become(uid: int, gid: int, root: Path) -> list[str]:
    """Return the setpriv prefix when it is of use: as root, with a root folder all may enter."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    folder = root.absolute()
    if not all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents)):
        return []
    prefix = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all"]
    probe = [*prefix, "bwrap", *NAMESPACES, "--ro-bind", "/", "/", "true"]
    done = subprocess.run(probe, check=False, capture_output=True)
    return prefix if done.returncode == 0 else []


@dataclass(frozen=True)
class Bubblewrap:
    """bubblewrap, from the machine's package manager."""

    name: str = "bwrap"
    traceable: bool = True

    @property
    def description(self) -> str:
        """The name and version that bwrap gives itself."""
        done = subprocess.run(["bwrap", "--version"], check=False, capture_output=True, text=True)
        return done.stdout.strip() or "bubblewrap"

    @contextmanager
    def session(self, tree: Tree) -> Iterator[Session]:
        """Use the unpacked copy as it is; mount points that the image lacks cannot be made."""
        yield BubblewrapSession(tree.root)
