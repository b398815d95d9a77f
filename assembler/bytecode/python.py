"""Where a python keeps its modules and their bytecode, and which files are modules. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CACHE = "__pycache__"
HEADER = 16  # bytes before the code: magic number, flags, and source hash or time and size
HASH_BASED = 0b01  # the flag of a .pyc that its source's time cannot make stale (PEP 552)


@dataclass(frozen=True)
class PythonInfo:
    """The prefix's interpreter; paths relative to the prefix.

    ``sha256`` is its package's, empty where that does not matter.
    """

    version: str
    site_packages: str
    sha256: str

    @classmethod
    def of(cls, index: Mapping[str, Any], sha256: str = "") -> PythonInfo:
        """Return the facts of a python package, given its index.json and its own SHA-256."""
        short = ".".join(str(index["version"]).split(".")[:2])
        site = index.get("python_site_packages_path") or f"lib/python{short}/site-packages"
        return cls(short, str(site), sha256)

    @property
    def executable(self) -> str:
        """The interpreter's path."""
        return f"bin/python{self.version}"

    @property
    def library(self) -> str:
        """The folder with the standard library; it ends with a slash."""
        return f"lib/python{self.version}/"

    @property
    def tag(self) -> str:
        """How the interpreter names its bytecode files."""
        return f"cpython-{self.version.replace('.', '')}"

    def bytecode(self, source: str) -> str:
        """Return the path of a source file's bytecode."""
        folder, slash, name = source.rpartition("/")
        return f"{folder}{slash}{CACHE}/{name.removesuffix('.py')}.{self.tag}.pyc"

    def compiles(self, path: str, path_type: str) -> bool:
        """Tell whether a file is a module that gets bytecode; links are none."""
        return (
            path_type == "hardlink"
            and path.endswith(".py")
            and path.startswith((self.library, self.site_packages + "/"))
        )


def lasting(bytecode: bytes) -> bool:
    """Tell whether shipped bytecode stays good although every file gets a new time."""
    return len(bytecode) >= HEADER and bool(bytecode[4] & HASH_BASED)
