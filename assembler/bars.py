"""Progress bars on a terminal; apart from ``progress``, since rich takes time to load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichBars
from rich.progress import Task as RichTask
from rich.text import Text

from assembler.progress import SilentProgress, Task


class _AmountColumn(ProgressColumn):
    """How much is done: bytes for downloads and layers, a count for everything else."""

    def render(self, task: RichTask) -> Text:
        if task.total is None:
            return Text("")
        if task.fields.get("in_bytes"):
            return Text(f"{decimal(int(task.completed))} of {decimal(int(task.total))}")
        return Text(f"{int(task.completed)} of {int(task.total)}")


class _Bar:
    def __init__(self, bars: RichBars, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: float = 1) -> None:
        self._bars.advance(self._task, amount)

    def describe(self, text: str) -> None:
        self._bars.update(self._task, description=text)


class LiveProgress(SilentProgress):
    """Progress bars on a terminal; finished work leaves one line behind."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = Console(stderr=True)
        self._bars: RichBars | None = None
        self._open = 0

    def _start(self) -> RichBars:
        if self._bars is None:
            self._bars = RichBars(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                _AmountColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        return self._bars

    @contextmanager
    def task(
        self,
        description: str,
        total: float | None = None,
        *,
        in_bytes: bool = False,
    ) -> Iterator[Task]:
        """Show a bar for as long as the block runs."""
        bars = self._start()
        started = time.monotonic()
        bar = bars.add_task(description, total=total, in_bytes=in_bytes)
        self._open += 1
        try:
            yield _Bar(bars, bar)
            self.say(f"{description} ({time.monotonic() - started:.1f} s)")
        finally:
            bars.remove_task(bar)
            self._open -= 1
            if not self._open:
                bars.stop()
                self._bars = None

    def say(self, message: str) -> None:
        """Print one line above the bars."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def detail(self, message: str) -> None:
        """Print one line above the bars when verbose."""
        if self._verbose:
            self.say(message)
