"""What a package's log says of a failure, in a line."""

from __future__ import annotations

import re
from pathlib import Path

LINES = 4
LONGEST = 400  # characters
# What rattler-build writes into a log beside the script's own words.
DONE, ECHO, FAILED = "✔", "+ ", "Script failed"
HOW_TO_REPEAT = "\nScript execution failed."
ERROR_CLASS = re.compile(r"^(Py)?RattlerBuildError: ")


def tail(log: Path) -> str:
    """Return the end of a log as one line: what the script said last, not how to run it again.

    What came before the script counts only when nothing came after. Its first command, and those
    it echoed before it said anything, count only when nothing else tells what failed.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.partition(HOW_TO_REPEAT)[0].splitlines()]
    said = [ERROR_CLASS.sub("", line) for line in lines if line]
    done = [place for place, line in enumerate(said) if line.startswith(DONE)]
    latest = said[done[-1] + 1 :] if done else said
    said = latest or [line for line in said if not line.startswith(DONE)]
    echoed = [line for line in said if line.startswith(ECHO)]
    if echoed and any(line != echoed[0] and not line.startswith(FAILED) for line in said):
        # Not always the first line: the command and its output come through two pipes.
        said.remove(echoed[0])
    said = said[-LINES:]
    while len(said) > 1 and said[0].startswith(ECHO) and not said[1].startswith(FAILED):
        said.pop(0)
    return " | ".join(said)[-LONGEST:]
