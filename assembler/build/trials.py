"""Running the tests that packages carry: each in an environment and a process of its own.

A recipe's ``tests:`` go into its package, except for ``package_contents``, which rattler-build
checks while it builds. What a test needs and the machine lacks is told, and never counts as passed:
a virtual package such as a newer C library, or what a test says in a line ``not-run: …``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from assembler.build.logs import tail
from assembler.build.subjects import Subject
from assembler.build.trialworker import Job, Result
from assembler.channel.location import channel_url
from assembler.channel.records import Record
from assembler.errors import VerifyError
from assembler.progress import Progress
from assembler.stack import Profile
from assembler.workspace import Workspace

Outcome = Literal["passed", "failed", "not run", "none"]
TIMEOUT = 1800.0  # seconds for one test, its environment included
KEPT = ("SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What came of one package's tests; ``words`` say why some failed or did not run."""

    path: str
    outcome: Outcome
    tests: int
    passed: int
    not_run: int
    seconds: float = 0.0
    words: tuple[str, ...] = ()
    log: str | None = None


@dataclass
class TrialResult:
    """What a run of tests did; failures are told by ``error``."""

    trials: list[Trial] = field(default_factory=list)
    untested: tuple[str, ...] = ()
    seconds: float = 0.0

    def of(self, outcome: Outcome) -> list[Trial]:
        """Return the packages with this outcome."""
        return [trial for trial in self.trials if trial.outcome == outcome]

    @property
    def error(self) -> VerifyError | None:
        """The failure as a sentence, or None when no test failed."""
        failed = self.of("failed")
        if not failed:
            return None
        first = failed[0]
        return VerifyError(
            f"the tests of {len(failed)} of {len(self.trials)} packages failed, first "
            f"{first.path}: {'; '.join(first.words)}",
            remedy=f"read the log {first.log}",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result for ``--json``."""
        return {
            "packages": [asdict(trial) for trial in self.trials],
            "failed": [trial.path for trial in self.of("failed")],
            "not_run": {trial.path: list(trial.words) for trial in self.trials if trial.not_run},
            "untested": list(self.untested),
            "seconds": round(self.seconds, 1),
        }


def _ended(log: Path, words: str, seconds: float) -> Result:
    """Return the failure of a test that could not say how it went, and write it into its log."""
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"{words}\n")
    return Result(False, seconds, words)


class Trials:
    """Runs the tests of packages, some at a time."""

    def __init__(
        self, workspace: Workspace, profile: Profile, progress: Progress, *, jobs: int = 1
    ) -> None:
        self._workspace = workspace
        self._progress = progress
        self._jobs = max(1, jobs)
        self._channels = (channel_url(workspace.channel), *profile.channels)
        # Not below build/work, which every build empties.
        self._all_work = workspace.build / "tests"
        self._work = self._all_work / f"{profile.name}-{os.getpid()}"
        self._logs = workspace.build / "logs" / profile.name
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def run(self, found: Iterable[Subject], *, keep_going: bool = False) -> TrialResult:
        """Run the tests and return what came of each package.

        A failing package ends the run after those that are being tested, unless ``keep_going``.
        """
        started = time.monotonic()
        result = TrialResult()
        queue = []
        for subject in found:
            if not subject.tests:
                result.trials.append(Trial(subject.record.path, "none", 0, 0, 0))
            elif subject.lacks:
                count, words = len(subject.tests), (subject.lacks,)
                trial = Trial(subject.record.path, "not run", count, 0, count, words=words)
                self._take(subject, trial, result)
            else:
                queue.append(subject)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._sweep()
        try:
            self._run(queue, result, keep_going)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        result.untested = tuple(subject.record.path for subject in queue)
        result.trials.sort(key=lambda trial: trial.path)
        result.seconds = time.monotonic() - started
        return result

    def _sweep(self) -> None:
        """Remove what runs that were killed have left."""
        for left in self._all_work.glob("*-*"):
            process = left.name.rpartition("-")[2]
            if process.isdigit() and not Path(f"/proc/{process}").exists():
                shutil.rmtree(left, ignore_errors=True)

    def _run(self, queue: list[Subject], result: TrialResult, keep_going: bool) -> None:
        """Test what is in the queue; what is left there was not reached."""
        running: dict[Future[Trial], Subject] = {}
        with (
            self._progress.task("testing packages", total=len(queue)) as bar,
            ThreadPoolExecutor(self._jobs) as pool,
        ):
            try:
                while running or (queue and (keep_going or not result.of("failed"))):
                    going = keep_going or not result.of("failed")
                    while going and queue and len(running) < self._jobs:
                        subject = queue.pop(0)
                        running[pool.submit(self._test, subject)] = subject
                    names = ", ".join(subject.record.name for subject in running.values())
                    bar.describe(f"testing {names}")
                    finished, _waiting = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        bar.advance()
                        self._take(running.pop(future), future.result(), result)
            except BaseException:
                self._stop()
                raise

    def _take(self, subject: Subject, trial: Trial, result: TrialResult) -> None:
        """Record what came of one package."""
        result.trials.append(trial)
        if trial.outcome == "failed":
            self._progress.say(f"failed: {subject.label} (log {trial.log})")
        else:
            self._progress.detail(f"{trial.outcome}: {subject.label} in {trial.seconds:.1f} s")

    def _test(self, subject: Subject) -> Trial:
        """Run a package's tests one after another."""
        record = subject.record
        log = self._logs / f"test-{record.name}-{record.version}-{record.build}.log"
        log.unlink(missing_ok=True)
        passed, not_run, seconds = 0, 0, 0.0
        words: list[str] = []
        failed = False
        for index, kind in enumerate(subject.tests):
            if self._stopping:
                break
            outcome = self._one(record, index, log)
            seconds += outcome.seconds
            if not outcome.passed:
                failed = True
                words.append(f"test {index + 1} ({kind}): {outcome.error or tail(log)}")
            elif outcome.not_run:
                not_run += 1
                words += outcome.not_run
            else:
                passed += 1
        state: Outcome = "failed" if failed else "not run" if not passed else "passed"
        return Trial(
            record.path, state, len(subject.tests), passed, not_run,
            round(seconds, 1), tuple(words), str(log),
        )  # fmt: skip

    def _one(self, record: Record, index: int, log: Path) -> Result:
        """Run one test in a child process and judge it by its result file."""
        work = self._work / f"{record.name}-{record.build}-{index}"
        (work / "tmp").mkdir(parents=True)
        job = Job(str(self._workspace.channel / record.path), index, self._channels, str(log))
        job_file, result_file = work / "job.json", work / "result.json"
        job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        command = [sys.executable, "-m", "assembler.build.trialworker"]
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*command, str(job_file), str(result_file)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self._environment(work),
                umask=0o022,
                start_new_session=True,
            )
            self._processes.add(process)
            if self._stopping:
                self._stop()  # it was started after the others were ended
            try:
                code = process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return _ended(log, f"it did not end within {TIMEOUT:.0f} s", TIMEOUT)
            finally:
                self._processes.discard(process)
        try:
            data = json.loads(result_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return _ended(log, f"the worker ended with status {code}", 0.0)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Result(**{**data, "not_run": tuple(data["not_run"])})

    def _environment(self, work: Path) -> dict[str, str]:
        """Return a worker's environment: environments are made on the project's own disk."""
        keep = {key: os.environ[key] for key in KEPT if key in os.environ}
        return keep | {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(work),
            "TMPDIR": str(work / "tmp"),
            "RATTLER_CACHE_DIR": str(self._workspace.build / "cache" / "tests"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    def _stop(self) -> None:
        """End the workers that are still running, with everything they started, and start none."""
        self._stopping = True
        for process in list(self._processes):
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
