"""Reads what strace wrote: every program that a smoke run started.

The log holds the sandbox's own programs too (bubblewrap, an engine's monitor and runtime). The run
proper begins where the image's program is executed and ends where that process does; processes
that were there before belong to the sandbox.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_CALL = re.compile(
    r'^(?P<pid>\d+)\s+execve(?:at)?\((?:[^"]*, )?"(?P<path>(?:[^"\\]|\\.)*)"(?P<rest>.*)$'
)
_ARGUMENTS = re.compile(r'\[(?P<list>(?:"(?:[^"\\]|\\.)*"(?:\.\.\.)?(?:, )?|\.\.\.)*)\]')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_RESULT = re.compile(r"= (?P<code>-?\d+|\?)(?: (?P<error>E[A-Z0-9]+))?[^=]*$")
_RESUMED = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. execve(?:at)? resumed>")
_EXITED = re.compile(r"^(?P<pid>\d+)\s+\+\+\+ (?:exited|killed)")
_SUPERSEDED = re.compile(r"^(?P<pid>\d+)\s+\+\+\+ superseded by execve in pid (?P<by>\d+)")

ENGINE_PROGRAMS = frozenset({"podman", "conmon", "runc", "crun", "bwrap", "catatonit", "netavark"})
"""What an engine may start on its own behalf while the program runs, in processes of its own."""


@dataclass(frozen=True)
class Exec:
    """One program that was started, or that somebody tried to start (``error`` says why not)."""

    path: str
    argv: tuple[str, ...]
    error: str | None = None


def read_trace(log: Path, program: str) -> tuple[Exec, ...]:
    """Return the programs that ran inside the image, its own program first.

    ``program`` is the path that the sandbox executes. A log without it gives an empty tuple.
    """
    if not log.is_file():
        return ()
    with log.open(encoding="utf-8", errors="replace") as lines:
        return parse_trace(list(lines), program)


def parse_trace(lines: list[str], program: str) -> tuple[Exec, ...]:
    """Parse strace's lines; see read_trace."""
    started: list[Exec] = []
    outside: set[str] = set()
    pending: dict[str, tuple[str, tuple[str, ...]]] = {}
    root: str | None = None
    for line in lines:
        if (gone := _SUPERSEDED.match(line)) and gone["pid"] == root:
            continue
        if (gone := _EXITED.match(line)) and root is not None and gone["pid"] == root:
            break
        if resumed := _RESUMED.match(line):
            pid = resumed["pid"]
            path, argv = pending.pop(pid, ("", ()))
        elif call := _CALL.match(line):
            pid, path = call["pid"], _plain(call["path"])
            found = _ARGUMENTS.search(call["rest"])
            argv = tuple(_plain(text) for text in _STRING.findall(found["list"])) if found else ()
            if "<unfinished" in line:
                pending[pid] = (path, argv)
                continue
        else:
            continue
        result = _RESULT.search(line)
        error = result["error"] if result else None
        if root is None:
            if path == program and error is None:
                root = pid
            else:
                outside.add(pid)
                continue
        if path.rpartition("/")[2] in ENGINE_PROGRAMS:
            outside.add(pid)
        elif path and (pid == root or pid not in outside):
            started.append(Exec(path, argv, error))
    return tuple(started)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
