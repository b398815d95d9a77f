"""Bytecode made by the channel's own python, once per package, in fixed blocks of modules.

What marshal writes depends on which strings a process has seen before, so every block is compiled
by a process of its own: the bytes depend on the package alone, never on how many blocks run at the
same time. Blocks close after BLOCK_FILES modules or BLOCK_BYTES of source.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assembler.errors import ImageError, MissingToolError

BLOCK_FILES = 128
BLOCK_BYTES = 4 << 20
SCRIPT = Path(__file__).with_name("compile_sources.py")
# Nothing of the caller's environment reaches the compiler.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
FLAGS = ("-s", "-S", "-B", "-X", "utf8", "-W", "ignore")


@dataclass(frozen=True)
class Compiled:
    """A module's place in the prefix and its bytecode (empty when it does not compile)."""

    source: str
    bytecode: bytes


class Interpreter:
    """The channel's python, unpacked where it can run here, with a pool of compiler processes."""

    def __init__(self, executable: Path, workers: int) -> None:
        self._executable = executable.absolute()
        # Given as text: a script's own folder would come first on its module path.
        self._program = SCRIPT.read_text(encoding="utf-8")
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="bytecode")

    def check(self) -> None:
        """Raise MissingToolError unless the interpreter runs on this machine."""
        try:
            done = subprocess.run(
                [self._executable, *FLAGS, "-c", "import importlib.util"],
                env=ENVIRONMENT,
                capture_output=True,
                check=False,
                text=True,
                errors="replace",
            )
            reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            failed = done.returncode != 0
        except OSError as error:
            failed, reason = True, error.strerror or str(error)
        if failed:
            raise MissingToolError(
                f"the channel's python does not run on this machine ({reason}), so modules cannot "
                "be compiled",
                remedy="use a machine of the profile's platform whose glibc is new enough",
            )

    def submit(self, sources: IO[bytes]) -> Future[IO[bytes]]:
        """Compile a block of records in a process of its own; the result is the answers' file."""
        return self._pool.submit(self._run, sources)

    def _run(self, sources: IO[bytes]) -> IO[bytes]:
        answers = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the reader of the answers)
        with sources:
            sources.seek(0)
            done = subprocess.run(
                [self._executable, *FLAGS, "-c", self._program],
                cwd="/",
                env=ENVIRONMENT,
                stdin=sources,
                stdout=answers,
                stderr=subprocess.PIPE,
                check=False,
            )
        if done.returncode:
            answers.close()
            words = done.stderr.decode(errors="replace").strip().splitlines()
            raise ImageError(
                f"the channel's python failed to compile modules ({(words or ['no message'])[-1]})",
                remedy="check the python package with `assembler verify`",
            )
        answers.seek(0)
        return answers

    def close(self) -> None:
        """Wait for the processes to end."""
        self._pool.shutdown(cancel_futures=True)


class Batch:
    """One package's modules on their way through the compiler.

    Bytecode names its source below ``prefix``, an absolute path, or relative to it when it is not
    known yet: importing a module puts the true path there.
    """

    def __init__(self, interpreter: Interpreter, prefix: str = "") -> None:
        self._interpreter = interpreter
        self._root = f"{prefix}/" if prefix else ""
        self._names: list[list[str]] = []
        self._results: list[Future[IO[bytes]]] = []
        self._block: IO[bytes] | None = None

    def add(self, place: str, source: bytes) -> None:
        """Hand in a module by its place in the prefix."""
        if self._block is None:
            self._block = tempfile.TemporaryFile()  # noqa: SIM115
            self._names.append([])
        path = f"{self._root}{place}".encode("utf-8", "surrogateescape")
        self._names[-1].append(place)
        for field in (path, source):
            self._block.write(struct.pack("<I", len(field)))
            self._block.write(field)
        if len(self._names[-1]) >= BLOCK_FILES or self._block.tell() >= BLOCK_BYTES:
            self._close()

    def _close(self) -> None:
        if self._block is not None:
            self._results.append(self._interpreter.submit(self._block))
            self._block = None

    def results(self) -> Iterator[Compiled]:
        """Yield every module handed in, in that order, once."""
        self._close()
        for names, future in zip(self._names, self._results, strict=True):
            with future.result() as answers:
                for name in names:
                    head = answers.read(4)
                    if len(head) < 4:
                        raise ImageError(
                            f"the channel's python stopped while compiling {name}",
                            remedy="free some memory and run it again",
                        )
                    yield Compiled(name, answers.read(struct.unpack("<I", head)[0]))
