"""Runs a profile's smokes inside an image and keeps what they said.

Each smoke is Python source for the image's own interpreter. It runs as the image's user, without
network, with a read-only root and an empty /tmp, and with no variables but the image's and its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from assembler.errors import ImageError
from assembler.progress import Progress
from assembler.stack import Smoke
from assembler.verify.sandbox import Command, Completed, Sandbox, choose
from assembler.verify.sandbox.base import Session, strace_works
from assembler.verify.sandbox.base import run as run_command
from assembler.verify.tree import Tree

Outcome = Literal["pass", "fail", "timeout", "does-instead"]
TAIL = 4000
NONROOT = (65532, 65532)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExecRecord(_Data):
    """A program that was started inside the image; ``error`` is set when it could not be."""

    path: str
    argv: tuple[str, ...]
    error: str | None = None


class SmokeRun(_Data):
    """How one smoke went.

    ``outcome`` is ``does-instead`` when it failed in the way that its ``expect_failure`` describes;
    ``instead`` is then the line that matched. ``output`` holds the last characters, ``log`` the
    file with all of it. ``execs`` is None when processes could not be watched.
    """

    id: str
    summary: str
    outcome: Outcome
    exit_code: int | None
    seconds: float
    timeout: float
    output: str
    instead: str | None = None
    unexpected_pass: bool = False
    log: str | None = None
    execs: tuple[ExecRecord, ...] | None = None


class SmokeRuns(_Data):
    """All smokes of one image, and the sandbox that they ran in."""

    sandbox: str
    description: str
    user: str
    runs: tuple[SmokeRun, ...] = ()
    untraced: str | None = None


def run(
    tree: Tree,
    smokes: Sequence[Smoke],
    progress: Progress,
    *,
    sandbox: str | None = None,
    logs: Path | None = None,
    trace: bool = True,
) -> SmokeRuns:
    """Run the smokes one after another and return what each did.

    ``sandbox`` forces one of ``podman``, ``docker``, ``bwrap``, ``chroot``; otherwise the first
    that works is taken. ``logs`` is a folder for the complete outputs. MissingToolError when
    nothing can run programs here, ImageError when the image says no interpreter or user.
    """
    program = interpreter(tree)
    user = user_of(tree)
    chosen = choose(sandbox, tree)
    progress.say(f"smoke sandbox: {chosen.name} ({chosen.description})")
    untraced = why_untraced(chosen) if trace else "it was switched off"
    done: list[SmokeRun] = []
    with chosen.session(tree) as session, progress.task("smoke", total=len(smokes)) as task:
        for smoke in smokes:
            task.describe(f"smoke {smoke.id}")
            done.append(_one(tree, session, smoke, program, user, logs, trace=untraced is None))
            task.advance()
    return SmokeRuns(
        sandbox=chosen.name,
        description=chosen.description,
        user=f"{user[0]}:{user[1]}",
        runs=tuple(done),
        untraced=untraced,
    )


def why_untraced(sandbox: Sandbox) -> str | None:
    """Say why processes cannot be watched in this sandbox, or None when they can."""
    if not sandbox.traceable:
        return f"strace cannot see what {sandbox.name} starts (try --sandbox bwrap)"
    if not strace_works():
        return "strace is not installed or may not trace"
    return None


def interpreter(tree: Tree) -> str:
    """Return the absolute path of the program that takes ``-c SOURCE``: the image's entry point."""
    if tree.config is None:
        raise ImageError(f"{tree.label} is no image", remedy="run the smokes on an image")
    entry = tree.config.entrypoint
    candidates = [entry[0]] if len(entry) == 1 else []
    if tree.prefix is not None:
        candidates.append(f"/{tree.prefix}/bin/python")
    for candidate in candidates:
        path = candidate if candidate.startswith("/") else tree.which(candidate)
        if path and tree.file_at(path.lstrip("/")) is not None:
            return "/" + path.lstrip("/")
    raise ImageError(
        f"{tree.label} has no interpreter (its entry point is {list(entry)})",
        remedy="give the image Python as its entry point",
    )


def user_of(tree: Tree) -> tuple[int, int]:
    """Return the image's numeric user and group; ImageError when it would run as root."""
    ids = tree.config.ids if tree.config is not None else None
    if ids is None or ids[0] == 0:
        seen = tree.config.user if tree.config is not None else ""
        raise ImageError(
            f"the image's user is {seen or 'not set, so root'!r}",
            remedy="set a numeric user that is not root, such as 65532:65532",
        )
    return ids


def _one(
    tree: Tree,
    session: Session,
    smoke: Smoke,
    program: str,
    user: tuple[int, int],
    logs: Path | None,
    *,
    trace: bool,
) -> SmokeRun:
    assert tree.config is not None
    workdir = tree.config.workdir if tree.exists(tree.config.workdir) else "/"
    command = Command(
        argv=(program, "-c", smoke.code),
        env=tree.config.env,
        extra_env=smoke.env,
        user=user,
        workdir=workdir,
        timeout=smoke.timeout,
    )
    log = logs / f"{smoke.id}.log" if logs is not None else None
    done = run_command(session, command, trace=trace, log=log)
    outcome, instead = judge(smoke, done)
    return SmokeRun(
        id=smoke.id,
        summary=smoke.summary,
        outcome=outcome,
        exit_code=done.exit_code,
        seconds=round(done.seconds, 3),
        timeout=smoke.timeout,
        output=done.output[-TAIL:],
        instead=instead,
        unexpected_pass=outcome == "pass" and smoke.expect_failure is not None,
        log=str(log) if log is not None else None,
        execs=None
        if done.execs is None
        else tuple(ExecRecord(path=e.path, argv=e.argv, error=e.error) for e in done.execs),
    )


def judge(smoke: Smoke, done: Completed) -> tuple[Outcome, str | None]:
    """Say how a run is to be taken, and for a foreseen failure the line that was foreseen."""
    if done.exit_code is None:
        return "timeout", None
    if done.exit_code == 0:
        return "pass", None
    if smoke.expect_failure is not None:
        foreseen = re.compile(smoke.expect_failure)
        for line in reversed(done.output.splitlines()):
            if foreseen.search(line):
                return "does-instead", line.strip()
    return "fail", None
