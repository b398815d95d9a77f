"""Programs that are timed: wall time, memory, and an end when the time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRACE = 10  # seconds


class BenchmarkError(Exception):
    """A side of a comparison that could not be measured; the text says why."""


@dataclass(frozen=True)
class Ran:
    """A finished program: seconds of wall time; ``peak`` bytes of its largest process."""

    seconds: float
    peak: int


@dataclass(frozen=True)
class Clock:
    """How long the whole measurement may take, in seconds since it began."""

    started: float
    budget: float

    @classmethod
    def of(cls, minutes: float) -> Clock:
        """Start a clock."""
        return cls(time.monotonic(), minutes * 60)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.started + self.budget - time.monotonic()

    def demand(self, seconds: float) -> None:
        """Raise BenchmarkError when something that takes this long would end too late."""
        if self.left < seconds:
            raise BenchmarkError("the time budget is used up")


def run(command: Sequence[str | Path], clock: Clock, env: Mapping[str, str] | None = None) -> Ran:
    """Run a program in the checkout; BenchmarkError when it fails or takes too long."""
    words = [str(part) for part in command]
    overdue, gone = threading.Event(), threading.Event()
    with tempfile.TemporaryFile() as said:
        started = time.monotonic()
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
        )  # fmt: skip

        def end() -> None:
            overdue.set()
            # Builders end what they started when they are asked to; nobody asks twice.
            for number, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 0)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                    gone.wait(grace)

        timer = threading.Timer(max(clock.left, 1), end)
        timer.start()
        try:
            # Of the program and of all that it waited for: the largest of them, not their sum.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            end()
            process.wait()
            raise
        finally:
            gone.set()
            timer.cancel()
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if overdue.is_set():
            raise BenchmarkError(f"the time budget was used up while {words[0]} ran")
        if process.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise BenchmarkError(f"{Path(words[0]).name} failed: {lines[-1][-200:]}")
    return Ran(seconds, usage.ru_maxrss * 1024)
