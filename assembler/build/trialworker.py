"""One embedded test of a package: ``python -m assembler.build.trialworker JOB.json RESULT.json``.

rattler-build's own runner installs the package with what it declares, and nothing else, and runs
the test there. It may take its process down; the result file is the only thing that counts.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from rattler import Channel, MatchSpec, VirtualPackage, solve
from rattler.exceptions import GatewayError, SolverError
from rattler_build import Package, RattlerBuildError

from assembler.build.worker import PackageLog, serve

# What a test prints, at the start of a line, when it needs what the machine lacks.
NOT_RUN = "not-run: "
NO_ENVIRONMENT = "failed to setup test environment"


@dataclass(frozen=True)
class Job:
    """Which test of which package to run, and where its dependencies come from."""

    package: str
    index: int
    channels: tuple[str, ...]
    log: str


@dataclass(frozen=True)
class Result:
    """How one test went; ``not_run`` holds what it says it lacked."""

    passed: bool
    seconds: float
    error: str = ""
    not_run: tuple[str, ...] = ()


async def why_unsolvable(package: Package, channels: tuple[str, ...]) -> str:
    """Say why a package cannot be installed from these channels: the runner does not."""
    wanted = f"{package.name} =={package.version} {package.build_string}"
    try:
        await solve(
            sources=[Channel(url) for url in channels],
            specs=[MatchSpec(wanted)],
            virtual_packages=VirtualPackage.detect(),
        )
    except (SolverError, GatewayError) as error:
        return " ".join(str(error).split())
    return f"{wanted} can be solved; making its environment failed"


def run(job: Job) -> Result:
    """Run one test and return how it went; never raises for a failing one."""
    started = time.monotonic()
    log = PackageLog(Path(job.log))
    try:
        package = Package.from_file(job.package)
        outcome = package.run_test(job.index, channel=list(job.channels), progress_callback=log)
        passed, error = outcome.success, ""
        for message in outcome.output:
            if message not in log.lines:
                log.write(message)
        if not passed and any(NO_ENVIRONMENT in line for line in log.lines):
            error = asyncio.run(why_unsolvable(package, job.channels))
            log.write(error)
    except (RattlerBuildError, RuntimeError, OSError) as failure:
        passed, error = False, str(failure)
        log.write(error)
    lines = [line for message in log.lines for line in message.splitlines()]
    reasons = [line.removeprefix(NOT_RUN) for line in lines if line.startswith(NOT_RUN)]
    return Result(passed, time.monotonic() - started, error, tuple(dict.fromkeys(reasons)))


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
