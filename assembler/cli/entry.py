"""Where the process begins: what must hold before the first import that takes time."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
SAW = "interrupted; what was finished stays, nothing is half-written"
REMEDY = "run it again to go on"
SENTENCE = f"{SAW}."

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> NoReturn:
    """Entry point of the console script: handle signals first, then load the command line.

    What the interpreter does before this line (some ten milliseconds) is out of reach.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a script's background job
            signal.signal(number, _end)
    from assembler.cli.main import main as command_line

    command_line()


def raise_from_now_on() -> None:
    """Let signals be exceptions, which clean up: called when a command's modules are loaded.

    Does nothing in a process that has handlers of its own.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _interrupt)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once: nothing is under way, and an exception would surface amid some import."""
    if "--json" in sys.argv:
        facts = f'"exit_code": {INTERRUPTED}, "kind": "interrupted"'
        _write(1, f'{{"error": {{{facts}, "remedy": "{REMEDY}", "saw": "{SAW}"}}}}\n')
    _write(2, f"assembler: {SENTENCE}\n")
    os._exit(INTERRUPTED)


def _write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return  # closed or full: there is nobody to tell


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
