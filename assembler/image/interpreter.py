"""The channel's python, unpacked into the cache where it can compile the image's modules."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from assembler.bytecode.compiler import Interpreter
from assembler.bytecode.python import PythonInfo
from assembler.digest import digest_of
from assembler.image.segment import SegmentSpec, SegmentStream
from assembler.image.tarstream import Pieces

INTERPRETER_FORMAT = 1
# Debian 12's CPython 3.11.2 has no extraction filters; no name in a segment leaves its root.
FILTER: Mapping[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def unpack(spec: SegmentSpec, folder: Path) -> None:
    """Write a package's files below ``folder``, as its segment has them at that prefix."""
    pieces = SegmentStream(spec, None).pieces()
    root = spec.root.decode()
    with tarfile.open(fileobj=cast("IO[bytes]", Pieces(pieces)), mode="r|") as archive:
        for member in archive:
            member.name = member.name.removeprefix(root)
            if member.islnk():
                member.linkname = member.linkname.removeprefix(root)
            archive.extract(member, folder, set_attrs=True, **FILTER)


class LazyInterpreter:
    """The interpreter of an image, unpacked when the first module needs it; thread-safe."""

    def __init__(self, make: Callable[[], Interpreter]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Interpreter | None = None

    def get(self) -> Interpreter:
        """Return the interpreter; MissingToolError when it does not run here."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """End the compiler processes, if there are any."""
        if self._made is not None:
            self._made.close()


def prepare(
    python: PythonInfo, specs: Sequence[SegmentSpec], cache: Path, workers: int
) -> Interpreter:
    """Return the interpreter made of these packages, unpacked once per set of them.

    ``specs`` are python and what it depends on; their prefix is ignored. MissingToolError when
    it does not run on this machine.
    """
    key = digest_of([INTERPRETER_FORMAT, sorted(spec.sha256 for spec in specs)])
    place = cache / "python" / key[:32]
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        # Unpacked under its final name's length: binary prefixes are replaced for the final place.
        folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=place.parent))
        try:
            for spec in specs:
                final = SegmentSpec(
                    package=spec.package,
                    sha256=spec.sha256,
                    md5=spec.md5,
                    size=spec.size,
                    placement=spec.placement,
                    prefix=str(place.absolute()),
                    mtime=spec.mtime,
                )
                unpack(final, folder)
            if not place.is_dir():
                folder.rename(place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    interpreter = Interpreter(place / python.executable, workers)
    interpreter.check()
    return interpreter
