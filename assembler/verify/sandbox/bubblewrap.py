"""Runs programs in an unpacked image with bubblewrap.

For root, the copy is bound to a folder that everybody may enter and the program is started through
setpriv, so that it really is the image's user and cannot read what that user could not. Where that
does not work, bubblewrap's own user namespace stands in for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assembler.verify.sandbox.base import Command, Session
from assembler.verify.tree import Tree

NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session")
BIND = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class BubblewrapSession:
    """One unpacked image; ``place`` is where a private mount namespace shows it, for root."""

    root: Path
    place: Path | None = None

    def command_line(self, command: Command) -> list[str]:
        """Return the bwrap command line: read-only root, /proc, /dev, tmpfs on /tmp, no network."""
        uid, gid = command.user
        line: list[str] = []
        if self.place is not None:
            line = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BIND, "sh"]
            line += [str(self.root), str(self.place), *become(uid, gid)]
        line += [
            "bwrap", *NAMESPACES, "--uid", str(uid), "--gid", str(gid), "--hostname", "clean-image",
            "--ro-bind", str(self.place or self.root), "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp",  # noqa: S108
            "--chdir", command.workdir, "--clearenv",
        ]  # fmt: skip
        for name, value in command.environment.items():
            line += ["--setenv", name, value]
        return [*line, "--", *command.argv]


def become(uid: int, gid: int) -> list[str]:
    """Return the command line that turns root into another user for good."""
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all"]


def can_become() -> bool:
    """Whether another user, made from root, may start bubblewrap here."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", *become(65532, 65532), "bwrap", *NAMESPACES]
    done = subprocess.run([*probe, "--ro-bind", "/", "/", "true"], check=False, capture_output=True)
    return done.returncode == 0


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
        if not can_become():
            yield BubblewrapSession(tree.root)
            return
        place = Path(tempfile.mkdtemp(prefix="assembler-root-"))
        try:
            place.chmod(0o755)
            yield BubblewrapSession(tree.root, place)
        finally:
            place.rmdir()
