"""Carrying out a build plan: workers, logs, and one publication a step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assembler.build.compilation import unpack
from assembler.build.logs import tail
from assembler.build.needs import Machine
from assembler.build.normal import EPOCH
from assembler.build.plan import BuildPlan, Planned
from assembler.build.result import BuildResult, Built
from assembler.build.stack import StackRecipes, plan_stack, read_recipes
from assembler.build.worker import Job, Result, demand_scratch
from assembler.channel.guard import exclusive
from assembler.channel.index import publish, repair
from assembler.channel.location import channel_url
from assembler.errors import BuildError, MissingToolError, NoSpaceError
from assembler.progress import Progress
from assembler.stack import Profile
from assembler.targets import build_environment
from assembler.variants import GFX_AXIS
from assembler.workspace import Workspace

LIVE = 1.0  # seconds between two looks of the live view


def plan(
    workspace: Workspace,
    profile: Profile,
    *,
    only: Collection[str] = (),
    up_to: Collection[str] = (),
) -> BuildPlan:
    """Return what a build would do, changing nothing in the channel; nothing need be fetched."""
    stack = read_recipes(workspace, profile)
    return plan_stack(workspace, stack, profile, Machine.here()).select(only, up_to)


def _environment(
    planned: Planned, targets: tuple[str, ...], machine: Machine, home: Path
) -> dict[str, str]:
    """Return a worker's environment: this Python first on PATH, nothing of the user's session.

    Builds with needs of their own are told the ROCm root and how many compilers may run.
    """
    keep = {key: os.environ[key] for key in ("TMPDIR", "SSL_CERT_FILE") if key in os.environ}
    chosen = planned.rendered.variant.get(GFX_AXIS)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    if planned.needs.rocm and machine.rocm_root is not None:
        keep |= {"ROCM_HOME": str(machine.rocm_root), "ROCM_PATH": str(machine.rocm_root)}
        path = f"{path}:{machine.rocm_root}/bin"
    cpus = str(min(planned.needs.cpus, machine.cpus))
    return (
        keep
        | build_environment([chosen] if chosen else targets)
        | {
            "PATH": path,
            "MAX_JOBS": cpus,
            "CMAKE_BUILD_PARALLEL_LEVEL": cpus,
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "PYTHONHASHSEED": "0",
            "BUILD_PYTHON": sys.executable,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
        }
    )


class Builder:
    """Builds what a plan says is missing and publishes it step by step."""

    def __init__(
        self,
        workspace: Workspace,
        profile: Profile,
        progress: Progress,
        *,
        jobs: int,
        machine: Machine | None = None,
    ) -> None:
        self._workspace = workspace
        self._profile = profile
        self._progress = progress
        self._jobs = max(1, jobs)
        self._machine = machine or Machine.here()
        # A folder of this process: the workers of a killed run may still write into theirs.
        self._all_work = workspace.build / "work"
        self._work = self._all_work / f"{profile.name}-{os.getpid()}"
        self._python = self._work / "python"
        self._logs = workspace.build / "logs" / profile.name
        self._processes: set[subprocess.Popen[bytes]] = set()

    def run(
        self,
        *,
        keep_going: bool = False,
        only: Collection[str] = (),
        up_to: Collection[str] = (),
    ) -> BuildResult:
        """Build everything that is not up to date, or only what is named.

        A failing package stops the run after the packages that are being built, unless
        ``keep_going``: then only what is built with it is skipped, and BuildError comes at the end.
        A package that needs what the machine lacks fails before anything of it starts.
        """
        started = time.monotonic()
        with exclusive(self._workspace.channel, self._progress):
            repair(self._workspace.channel, self._progress, whole=False)
            stack = read_recipes(self._workspace, self._profile)
            found = plan_stack(self._workspace, stack, self._profile, self._machine)
            result = BuildResult(found.select(only, up_to), stack.gfx_targets)
            self._refuse(result, keep_going)
            if result.plan.todo:
                demand_scratch()
            shutil.rmtree(self._all_work, ignore_errors=True)
            self._logs.mkdir(parents=True, exist_ok=True)
            for step in result.plan.waves():
                ready = [
                    item
                    for item in step
                    if not item.lacks and not set(item.after) & set(self._names(result))
                ]
                self._unpack_python(ready)
                done = self._build_step(ready, stack, result, keep_going)
                publish(self._workspace.channel, done, progress=self._progress)
                if result.failed and not keep_going:
                    break
            if not result.failed and result.plan.stale:
                publish(
                    self._workspace.channel, [], remove=result.plan.stale, progress=self._progress
                )
                result.removed = result.plan.stale
            shutil.rmtree(self._work, ignore_errors=True)
        result.seconds = time.monotonic() - started
        if result.failed:
            label, words = next(iter(result.failed.items()))
            raise BuildError(
                f"{len(result.failed)} of {len(result.plan.todo)} packages failed, "
                f"first {label}: {words}",
                remedy=f"read the logs in {self._logs}",
            )
        return result

    def _refuse(self, result: BuildResult, keep_going: bool) -> None:
        """Fail the packages that cannot be built here, all at once when the rest cannot go on."""
        unable = [item for item in result.plan.todo if item.lacks]
        for item in unable:
            result.failed[item.label] = item.lacks
            if keep_going:
                self._progress.say(f"skipped: {item.label}: {item.lacks}")
        if unable and not keep_going:
            first = unable[0]
            saw, _, remedy = first.lacks.partition("; ")
            if remedy:
                raise BuildError(saw, remedy=remedy)
            names = ", ".join(dict.fromkeys(item.rendered.name for item in unable))
            raise MissingToolError(
                f"{names} cannot be built here: {first.lacks}",
                remedy="build it where that is, choose another way with --variant, or let the rest "
                "go on with --keep-going",
            )

    def _unpack_python(self, step: list[Planned]) -> None:
        """Unpack the python that compiles the modules of these packages, once a run."""
        packages = next((item.python for item in step if not item.is_python and item.python), ())
        if packages and not self._python.exists():
            unpack([self._workspace.channel / path for path in packages], self._python)

    def _names(self, result: BuildResult) -> list[str]:
        return [label.split()[0] for label in result.failed]

    def _build_step(
        self,
        step: list[Planned],
        stack: StackRecipes,
        result: BuildResult,
        keep_going: bool,
    ) -> list[Path]:
        """Build one step in parallel and return the finished packages."""
        done: list[Path] = []
        queue = list(step)
        running: dict[Future[Result], tuple[Planned, float]] = {}
        with (
            self._progress.task("building packages", total=len(step)) as bar,
            ThreadPoolExecutor(self._jobs) as pool,
        ):
            try:
                while queue or running:
                    while planned := self._next(queue, [item for item, _ in running.values()]):
                        self._progress.detail(f"building {planned.label}: {planned.why}")
                        future = pool.submit(self._build_one, planned, stack)
                        running[future] = planned, time.monotonic()
                    bar.describe(f"building {_live(running.values())}")
                    finished, _waiting = wait(running, LIVE, return_when=FIRST_COMPLETED)
                    for future in finished:
                        planned, _since = running.pop(future)
                        bar.advance()
                        self._take(planned, future.result(), result, done)
                    if result.failed and not keep_going:
                        queue.clear()
            except BaseException:
                self._stop()
                raise
        return done

    def _next(self, queue: list[Planned], running: list[Planned]) -> Planned | None:
        """Take the next package that fits beside the running ones, or None."""
        if len(running) < self._jobs:
            needs = [item.needs for item in running]
            for position, item in enumerate(queue):
                if self._machine.fits(item.needs, needs):
                    return queue.pop(position)
        return None

    def _take(
        self, planned: Planned, outcome: Result, result: BuildResult, done: list[Path]
    ) -> None:
        """Record what came of one package."""
        if outcome.no_space:
            self._stop()
            raise NoSpaceError(
                f"the disk is full while building {planned.label}",
                remedy=f"free some room in {self._workspace.build} and run it again",
            )
        if outcome.package is None:
            result.failed[planned.label] = outcome.error or "no reason given"
            self._progress.say(f"failed: {planned.label} (log {self._log(planned)})")
            return
        package = Path(outcome.package)
        done.append(package)
        built = Built(
            planned.path,
            planned.why,
            outcome.seconds,
            package.stat().st_size,
            outcome.left_out,
            outcome.parts,
        )
        result.built.append(built)
        self._progress.detail(f"built {planned.label} in {outcome.seconds:.1f} s")

    def _log(self, planned: Planned) -> Path:
        return self._logs / f"{planned.rendered.name}-{planned.build}.log"

    def _build_one(self, planned: Planned, stack: StackRecipes) -> Result:
        """Build one package in a child process and judge it by its result file."""
        work = self._work / f"{planned.rendered.name}-{planned.build}"
        work.mkdir(parents=True)
        log = self._log(planned)
        log.unlink(missing_ok=True)
        job = Job(
            recipe=str(planned.rendered.file),
            variants={key: list(values) for key, values in stack.axes.values.items()},
            zip_keys=[list(group) for group in stack.axes.zip_keys],
            name=planned.rendered.name,
            build=planned.rendered.build,
            channels=self._channels() if planned.rendered.host else (),
            input_key=planned.key,
            inputs=planned.inputs,
            work=str(work),
            log=str(log),
            python=str(work / "python" if planned.is_python else self._python)
            if planned.python
            else "",
        )
        job_file, result_file = work / "job.json", work / "result.json"
        job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        home = work / "home"
        home.mkdir()
        command = [sys.executable, "-m", "assembler.build.worker", str(job_file), str(result_file)]
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=_environment(planned, stack.gfx_targets, self._machine, home),
                umask=0o022,
                start_new_session=True,
            )
            self._processes.add(process)
            code = process.wait()
            self._processes.discard(process)
        if not result_file.is_file():
            return Result(None, error=f"the worker ended with status {code}; {tail(log)}")
        data: Mapping[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
        lists = {key: tuple(data[key]) for key in ("left_out", "parts")}
        outcome = Result(**{**data, **lists})
        if outcome.error:
            return Result(None, error=tail(log) or outcome.error, no_space=outcome.no_space)
        return outcome

    def _channels(self) -> tuple[str, ...]:
        """Return where host packages come from: our channel first, then the profile's others."""
        return (channel_url(self._workspace.channel), *self._profile.channels)

    def _stop(self) -> None:
        """End the workers that are still running, with everything they started."""
        for process in list(self._processes):
            try:
                os.killpg(process.pid, 15)
            except ProcessLookupError:
                continue


def _live(running: Iterable[tuple[Planned, float]]) -> str:
    """Return what is being built, and for how long."""
    now = time.monotonic()
    return ", ".join(
        f"{item.rendered.name} ({now - since:.0f} s)"
        for item, since in sorted(running, key=lambda one: one[1])
    )
