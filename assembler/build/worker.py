"""One build in a process of its own: ``python -m assembler.build.worker JOB.json RESULT.json``.

rattler-build changes the process it runs in (signals, threads), and may take it down; the builder
stays whole whatever happens here. The result file is the only thing that counts, not the exit code.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rattler_build import EnvironmentIsolation, RattlerBuildError, ToolConfiguration
from rattler_build.progress import LogEvent, SimpleProgressCallback

from assembler.build.compilation import PYTHON, Compiler, unpack
from assembler.build.normal import Stamp, normalise
from assembler.build.recipes import render_variants
from assembler.errors import AssemblerError, ConfigError
from assembler.variants import Axes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PR_SET_PDEATHSIG = 1
LEFT_OUT = "left-out: "
PART = "part: "
SCRIPT_FAILED = "Script failed"  # the log says why
NO_SPACE = "No space left on device"
# rattler-build's own package is read once and thrown away.
SCRATCH_FORMAT = "conda:1"


@dataclass(frozen=True)
class Job:
    """What to build: one rendered package, chosen by name and rattler-build's build string."""

    recipe: str
    variants: dict[str, list[str]]
    zip_keys: list[list[str]]
    name: str
    build: str
    channels: tuple[str, ...]
    input_key: str
    inputs: dict[str, Any]
    work: str
    log: str
    python: str = ""  # the folder of the python that compiles; made here for python itself


@dataclass(frozen=True)
class Result:
    """What came of it: the finished package, or words about the failure."""

    package: str | None
    left_out: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    error: str | None = None
    no_space: bool = False
    parts: tuple[dict[str, Any], ...] = ()


class PackageLog(SimpleProgressCallback):
    """Writes rattler-build's messages to the package's log file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = path.open("a", encoding="utf-8", buffering=1)
        self.lines: list[str] = []

    def on_log(self, event: LogEvent) -> None:
        """Keep one message."""
        self.write(event.message)

    def write(self, message: str) -> None:
        """Add a message to the log."""
        self.lines.append(message)
        self._stream.write(f"{message}\n")


def _reported(lines: Iterable[str], prefix: str) -> tuple[dict[str, Any], ...]:
    """Return the objects that the build script printed behind a prefix."""
    return tuple(json.loads(line.removeprefix(prefix)) for line in lines if line.startswith(prefix))


def run(job: Job) -> Result:
    """Build, normalise, and return the result; never raises for a failing build."""
    started = time.monotonic()
    work = Path(job.work)
    scratch = work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    log = PackageLog(Path(job.log))
    try:
        axes = Axes(
            {key: tuple(values) for key, values in job.variants.items()},
            tuple(tuple(group) for group in job.zip_keys),
        )
        rendered = next(
            item
            for item in render_variants(Path(job.recipe), axes)
            if (data := item.recipe.to_dict())["package"]["name"] == job.name
            and data["build"]["string"] == job.build
        )
        built = rendered.run_build(
            tool_config=ToolConfiguration(test_strategy="skip", compression_threads=1),
            output_dir=scratch,
            channels=list(job.channels),
            progress_callback=log,
            no_build_id=True,
            package_format=SCRATCH_FORMAT,
            no_include_recipe=True,
            # The builder made this environment; other modes would drop the gfx variables from it.
            env_isolation=EnvironmentIsolation.NONE,
        )
        left_out, parts = _reported(log.lines, LEFT_OUT), _reported(log.lines, PART)
        stamp = Stamp(job.input_key, job.inputs, left_out, parts)
        package = _finish(Path(built.packages[0]), job, stamp)
    except (RattlerBuildError, RuntimeError, AssemblerError, OSError) as error:
        if SCRIPT_FAILED not in str(error):
            log.write(str(error))
        words = [*log.lines[-20:], str(error)]
        full = any(NO_SPACE in line for line in words)
        return Result(None, seconds=time.monotonic() - started, error=str(error), no_space=full)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Result(str(package), left_out, time.monotonic() - started, parts=parts)


def _finish(built: Path, job: Job, stamp: Stamp) -> Path:
    """Return the package in normal form, with bytecode when the job names a python."""
    done = Path(job.work) / "done"
    if not job.python:
        return normalise(built, done, stamp)
    if job.name == PYTHON:
        unpack([built], Path(job.python))
    with Compiler.opened(Path(job.python)) as compiler:
        return normalise(built, done, stamp, compiler)


def demand_scratch() -> None:
    """Raise ConfigError when TMPDIR, which builds are given, takes no files."""
    folder = os.environ.get("TMPDIR")
    if not folder:
        return
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(
            f"TMPDIR is {folder}, where no file can be written ({error.strerror})",
            remedy="set TMPDIR to a folder where you may write, or unset it",
        ) from None


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(do: Callable[[dict[str, Any]], DataclassInstance]) -> None:
    """Read the job file, do what it says, write the result whole, and leave at once."""
    die_with_parent()
    job_file, result_file = map(Path, sys.argv[1:3])
    data = json.loads(job_file.read_text(encoding="utf-8"))
    result = do({**data, "channels": tuple(data["channels"])})
    partial = result_file.with_suffix(".part")
    partial.write_text(json.dumps(asdict(result)), encoding="utf-8")
    partial.replace(result_file)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
