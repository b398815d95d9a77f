"""What every sandbox is: something that turns a command into a command line of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from assembler.verify.sandbox.trace import Exec, read_trace
from assembler.verify.tree import Tree

KEPT_OUTPUT = 4 << 20
"""Bytes of a program's output that are kept; the rest is read and dropped."""
GRACE = 15.0
"""Seconds that an engine has to end by itself after the program's own time is up."""


@dataclass(frozen=True)
class Command:
    """A program to run in an image: absolute argv[0], the image's environment and user."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    extra_env: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] = (65532, 65532)
    workdir: str = "/"
    timeout: float = 120

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables with the smoke's own over them."""
        return {**self.env, **self.extra_env}


@dataclass(frozen=True)
class Completed:
    """How a program ended: ``exit_code`` None after a timeout, ``execs`` None when not traced."""

    exit_code: int | None
    output: str
    seconds: float
    execs: tuple[Exec, ...] | None = None


class Session(Protocol):
    """A sandbox with one image in it."""

    def command_line(self, command: Command) -> list[str]:
        """Return what to run on this machine so that ``command`` runs in the image."""


class Sandbox(Protocol):
    """One way to run programs in an image."""

    @property
    def name(self) -> str:
        """The word that people choose it by."""

    @property
    def traceable(self) -> bool:
        """Whether the program is a descendant of the command line, so that strace sees it."""

    @property
    def description(self) -> str:
        """What it is, with its version and the flags that made it work."""

    def session(self, tree: Tree) -> AbstractContextManager[Session]:
        """Bring an image in for the length of the block."""


def run(
    session: Session, command: Command, *, trace: bool = False, log: Path | None = None
) -> Completed:
    """Run a command to its end or its timeout, with its output kept (and written to ``log``)."""
    line = session.command_line(command)
    with tempfile.TemporaryDirectory(prefix="assembler-trace-") as folder:
        record = Path(folder) / "trace"
        if trace:
            line = [*STRACE, "-o", str(record), "--", *line]
        exit_code, output, seconds = _run(line, command.timeout, log)
        execs = read_trace(record, command.argv[0]) if trace else None
    return Completed(exit_code, output, seconds, execs)


STRACE = (
    "strace", "-f", "-q", "--seccomp-bpf", "-s", "512",
    "-e", "trace=execve,execveat", "-e", "signal=none",
)  # fmt: skip


def strace_works() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run([*STRACE, "-o", "/dev/null", "true"], check=False, capture_output=True)
    return done.returncode == 0


def _run(line: list[str], timeout: float, log: Path | None) -> tuple[int | None, str, float]:
    started = time.monotonic()
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=host_environment(),
    )
    kept: list[bytes] = []
    assert process.stdout is not None
    reader = threading.Thread(target=_keep, args=(process.stdout, kept), daemon=True)
    reader.start()
    code: int | None = None  # also when an interrupt ends the waiting
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with _ignoring_the_dead():
            os.killpg(process.pid, signal.SIGTERM if code is None else signal.SIGKILL)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            with _ignoring_the_dead():
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reader.join(GRACE)
    output = b"".join(kept)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(output)
    return code, output.decode(errors="replace"), time.monotonic() - started


@contextmanager
def _ignoring_the_dead() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def _keep(stream: IO[bytes], kept: list[bytes]) -> None:
    room = KEPT_OUTPUT
    while data := os.read(stream.fileno(), 1 << 16):
        kept.append(data[:room])
        room -= len(kept[-1])


def host_environment() -> dict[str, str]:
    """Return the variables that sandbox programs themselves need on this machine."""
    names = ("PATH", "HOME", "XDG_RUNTIME_DIR", "TMPDIR", "CONTAINERS_CONF", "DOCKER_HOST")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {"LC_ALL": "C", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
