"""The modules of a built package as bytecode, made by the python that the same channel holds.

conda's convention: a package of one platform ships its bytecode, and only ``noarch: python`` ones
are compiled where they are installed. It is unchecked-hash, since every file gets a new time.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.build.component import component
from assembler.bytecode.compiler import Batch, Interpreter
from assembler.bytecode.python import PythonInfo

PYTHON = "python"
# Processes a package; how many there are changes no byte.
WORKERS = 2
INDEX = "index.json"
# Debian 12's CPython 3.11.2 has no extraction filters; no name in a package leaves its root.
FILTER: Mapping[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def unpack(packages: Iterable[Path], folder: Path) -> None:
    """Write an interpreter's packages into one folder, python last.

    Prefixes in the files stay as they are: CPython finds its modules from where it lies.
    """
    for package in packages:
        with zipfile.ZipFile(package) as archive:
            with component(archive, "pkg-") as files:
                for member in files:
                    files.extract(member, folder / "prefix", **FILTER)
            with component(archive, "info-") as info:
                for member in info:
                    stream = info.extractfile(member) if member.name == f"info/{INDEX}" else None
                    if stream is not None:
                        (folder / INDEX).write_bytes(stream.read())


@dataclass(frozen=True)
class Compiler:
    """A python that compiles for the packages of its channel."""

    python: PythonInfo
    interpreter: Interpreter

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Compiler]:
        """Yield the compiler that ``unpack`` wrote; MissingToolError when it does not run here."""
        python = PythonInfo.of(json.loads((folder / INDEX).read_bytes()))
        interpreter = Interpreter(folder / "prefix" / python.executable, WORKERS)
        try:
            interpreter.check()
            yield cls(python, interpreter)
        finally:
            interpreter.close()

    def compiled(
        self, files: tarfile.TarFile, paths: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield a record for paths.json and the bytes for each module, in the order of ``files``.

        Left to who installs are modules that hold the prefix, whose code is only known then, those
        that do not compile, and those whose bytecode the package brings. Memory stays bounded by
        the largest module.
        """
        batch = Batch(self.interpreter)
        for member in files:
            path = paths.get(member.name, {})
            if (
                self.python.compiles(member.name, str(path.get("path_type")))
                and "prefix_placeholder" not in path
                and self.python.bytecode(member.name) not in paths
            ):
                stream = files.extractfile(member)
                assert stream is not None
                batch.add(member.name, stream.read())
        for module in batch.results():
            if module.bytecode:
                record = {
                    "_path": self.python.bytecode(module.source),
                    "path_type": "hardlink",
                    "sha256": hashlib.sha256(module.bytecode).hexdigest(),
                    "size_in_bytes": len(module.bytecode),
                }
                yield record, module.bytecode
