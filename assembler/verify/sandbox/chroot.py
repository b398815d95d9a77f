"""Runs programs in an unpacked image with the kernel's namespaces and chroot, nothing installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assembler.verify.sandbox import launcher
from assembler.verify.sandbox.base import Command, Session
from assembler.verify.tree import Tree


@dataclass(frozen=True)
class ChrootSession:
    """One unpacked image."""

    root: Path

    def command_line(self, command: Command) -> list[str]:
        """Return the command line of the launcher with its order."""
        order = {
            "root": str(self.root.absolute()),
            "argv": list(command.argv),
            "env": command.environment,
            "uid": command.user[0],
            "gid": command.user[1],
            "workdir": command.workdir,
        }
        return [sys.executable, "-I", str(Path(launcher.__file__)), json.dumps(order)]


@dataclass(frozen=True)
class Chroot:
    """Namespaces and chroot, by the kernel alone."""

    name: str = "chroot"
    traceable: bool = True
    description: str = "namespaces and chroot"

    @contextmanager
    def session(self, tree: Tree) -> Iterator[Session]:
        """Use the unpacked copy as it is."""
        yield ChrootSession(tree.root)
