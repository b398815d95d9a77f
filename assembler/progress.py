"""What people see of long work: on stderr, live on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol


class Task(Protocol):
    """One piece of work in progress."""

    def advance(self, amount: float = 1) -> None:
        """Count ``amount`` more units as done."""

    def describe(self, text: str) -> None:
        """Replace the words shown beside the bar."""


class Progress(Protocol):
    """Where rooms report what they do; they never print."""

    def task(
        self, description: str, total: float | None = None, *, in_bytes: bool = False
    ) -> AbstractContextManager[Task]:
        """Show a piece of work for as long as the block runs; ``total`` counts units or bytes."""

    def say(self, message: str) -> None:
        """Tell something that stays on the screen (what moved, what was left out)."""

    def detail(self, message: str) -> None:
        """Tell something that only ``-v`` shows."""


class SilentTask:
    """A task that nobody watches."""

    def advance(self, amount: float = 1) -> None:
        """Do nothing."""

    def describe(self, text: str) -> None:
        """Do nothing."""


class SilentProgress:
    """Progress that nobody watches (``-q``, tests, library use)."""

    @contextmanager
    def task(
        self,
        description: str,
        total: float | None = None,
        *,
        in_bytes: bool = False,
    ) -> Iterator[Task]:
        """Yield a task that shows nothing."""
        yield SilentTask()

    def say(self, message: str) -> None:
        """Say nothing."""

    def detail(self, message: str) -> None:
        """Say nothing."""


class LineProgress(SilentProgress):
    """Progress for logs: a line when a piece of work ends, no control characters."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose

    @contextmanager
    def task(
        self,
        description: str,
        total: float | None = None,
        *,
        in_bytes: bool = False,
    ) -> Iterator[Task]:
        """Print the description and the time it took once the block ends."""
        started = time.monotonic()
        yield SilentTask()
        self.say(f"{description} ({time.monotonic() - started:.1f} s)")

    def say(self, message: str) -> None:
        """Print one line on stderr; the work goes on where nobody can read it."""
        with suppress(OSError):
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    def detail(self, message: str) -> None:
        """Print one line on stderr when verbose."""
        if self._verbose:
            self.say(message)


def choose_progress(*, quiet: bool = False, verbose: bool = False) -> Progress:
    """Return the progress that fits stderr: bars on a terminal, lines elsewhere, or nothing."""
    if quiet:
        return SilentProgress()
    if sys.stderr.isatty():
        from assembler.bars import LiveProgress

        return LiveProgress(verbose=verbose)
    return LineProgress(verbose=verbose)
