"""Smokes in every sandbox that this machine has: what the program sees, and what is seen of it."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from pathlib import Path

import pytest

from assembler.progress import SilentProgress
from assembler.stack import Smoke
from assembler.verify.gates import compilation, smoke
from assembler.verify.opening import find_subjects, open_tree
from assembler.verify.policy import read_policy
from assembler.verify.sandbox import NAMES, choose, try_all
from assembler.verify.sandbox.base import strace_works
from assembler.verify.smoke import SmokeRun, SmokeRuns, run
from tests.verify_making import Files, Item, make_layout, make_tree

BUSYBOX = Path("/bin/busybox")
QUIET = SilentProgress()
pytestmark = pytest.mark.skipif(
    not BUSYBOX.exists(), reason="no static busybox (apt-get install busybox-static)"
)


@functools.cache
def troubles() -> dict[str, str]:
    """Why each sandbox does not work here; empty words when it does."""
    return {trial.name: trial.trouble for trial in try_all()}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.engine] if name in ("podman", "docker") else [])
        for name in NAMES
    ]
)
def sandbox(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if troubles()[name]:
        pytest.skip(f"{name}: {troubles()[name]}")
    return name


def busybox() -> Files:
    tools = ("sh", "id", "touch", "cat", "sleep", "ls", "env", "ip", "wget", "grep")
    files: dict[str, bytes | str | Item] = {
        "bin/busybox": Item(BUSYBOX.read_bytes(), mode=0o755),
        "etc/secret": Item(b"for root's eyes", mode=0o600),
        "etc/note": Item(b"hello", mode=0o644),
        "home/nonroot": Item(uid=65532, gid=65532),
        "opt/tools/gcc": Item(target="/bin/busybox"),
    }
    return files | {f"bin/{tool}": Item(target="busybox") for tool in tools}


def command_lines() -> list[bytes]:
    """What every process of this machine was started with."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(place.read_bytes())
    return found


def kinds(sandbox: str) -> tuple[str, ...]:
    """Layers' compressions; docker reads zstd from version 23 on, Debian 12 has an older one."""
    return ("", "gzip") if sandbox == "docker" else ("zstd", "gzip")


def try_smokes(tmp_path: Path, sandbox: str, *smokes: Smoke) -> SmokeRuns:
    layout = make_layout(
        tmp_path / "layout",
        [busybox(), {"etc/.wh.nothing": "", "srv/layer": "of two layers"}],
        env={"PATH": "/bin", "GREETING": "hi there"},
        workdir="/home/nonroot",
        compression=kinds(sandbox),
    )
    (subject,) = find_subjects(layout)
    with open_tree(subject, tmp_path / "scratch", QUIET) as tree:
        # The tree's prefix would give a Python; its entry point is a shell, which takes -c as well.
        return run(tree, smokes, QUIET, sandbox=sandbox, logs=tmp_path / "logs")


def one(code: str, **more: object) -> Smoke:
    return Smoke.model_validate({"id": "one", "summary": "one", "code": code} | more)


LOOK = """
id -u; id -g
touch /etc/x 2>&1; touch /home/nonroot/x 2>&1; touch /opt/x 2>&1
touch /tmp/x && echo tmp-writable
cat /etc/secret 2>&1
cat /srv/layer; echo
echo "<$GREETING|$PATH|$LEAK|$OWN>"
grep -c : /proc/net/dev
grep CapEff /proc/self/status
grep NoNewPrivs /proc/self/status
pwd
"""


def test_the_program_is_nobody_with_nothing_to_write_and_nobody_to_call(
    sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "from the machine")
    runs = try_smokes(tmp_path, sandbox, one(LOOK, env={"OWN": "mine"}))
    (seen,) = runs.runs
    lines = seen.output.splitlines()
    assert lines[:2] == ["65532", "65532"]
    assert sum("Read-only file system" in line for line in lines) == 3
    assert "tmp-writable" in lines
    assert "of two layers" in lines
    assert "<hi there|/bin||mine>" in lines
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert lines[-1] == "/home/nonroot"
    assert lines[-4] == "1", "one network device, the loopback"
    if os.geteuid() == 0 or sandbox in ("podman", "docker"):
        assert "for root's eyes" not in seen.output
    assert (seen.outcome, runs.sandbox) == ("pass", sandbox)
    assert seen.log is not None
    assert Path(seen.log).read_text() == seen.output


def test_failures_are_told_apart(sandbox: str, tmp_path: Path) -> None:
    nap = f"61.{os.getpid()}{NAMES.index(sandbox)}"
    runs = try_smokes(
        tmp_path,
        sandbox,
        Smoke(id="fails", summary="a", code="echo broken; exit 7"),
        Smoke(id="instead", summary="b", code="echo no hipcc here; exit 1", expect_failure="hipcc"),
        Smoke(id="better", summary="c", code="exit 0", expect_failure="hipcc"),
        Smoke(id="slow", summary="d", code=f"echo started; sleep {nap}", timeout=1.5),
        Smoke(id="fine", summary="e", code="exit 0"),
    )
    outcomes = {seen.id: (seen.outcome, seen.exit_code) for seen in runs.runs}
    assert outcomes == {
        "fails": ("fail", 7),
        "instead": ("does-instead", 1),
        "better": ("pass", 0),
        "slow": ("timeout", None),
        "fine": ("pass", 0),
    }
    assert not any(
        f"sleep {nap}".encode() in line.replace(b"\0", b" ") for line in command_lines()
    ), "it runs on"
    by_id: dict[str, SmokeRun] = {seen.id: seen for seen in runs.runs}
    assert by_id["slow"].seconds < 30
    assert "started" in by_id["slow"].output
    result = smoke.check(runs)
    assert {finding.subject: finding.id for finding in result.findings} == {
        "fails": "smoke/failed",
        "instead": "smoke/does-instead",
        "better": "smoke/passes-now",
        "slow": "smoke/timeout",
    }


def test_a_compiler_that_runs_is_seen(sandbox: str, tmp_path: Path) -> None:
    if sandbox == "docker":
        pytest.skip("strace cannot see what a daemon starts")
    if not strace_works():
        pytest.skip("no strace, or it may not trace here")
    code = "/opt/tools/gcc true; /usr/bin/hipcc -c x; id; exit 0"
    layout = make_layout(tmp_path / "layout", [busybox()], env={"PATH": "/bin"}, compression=("",))
    (subject,) = find_subjects(layout)
    with open_tree(subject, tmp_path / "scratch", QUIET) as tree:
        runs = run(tree, [one(code)], QUIET, sandbox=sandbox)
        result = compilation.check(tree, read_policy("none"), runs)
    assert runs.untraced is None
    ran = [(finding.id, finding.subject) for finding in result.findings]
    assert ("no-compilation/compiler", "opt/tools/gcc") in ran
    assert ("no-compilation/started", "one: /opt/tools/gcc") in ran
    assert ("no-compilation/looked-for", "one: hipcc") in ran
    (seen,) = runs.runs
    assert seen.execs is not None
    assert seen.execs[0].path == "/bin/sh"
    assert not {"podman", "runc", "conmon", "bwrap"} & {Path(item.path).name for item in seen.execs}


def test_much_output_is_cut_and_not_kept_in_memory(sandbox: str, tmp_path: Path) -> None:
    count = "i=0; while [ $i -lt 200000 ]; do echo {}; i=$((i+1)); done"
    code = count.format("0123456789" * 4)
    (seen,) = try_smokes(tmp_path, sandbox, one(code)).runs
    assert seen.outcome == "pass"
    assert len(seen.output) == 4000
    assert seen.log is not None
    assert Path(seen.log).stat().st_size == 4 << 20


def test_the_first_sandbox_that_works_is_taken() -> None:
    working = [name for name in NAMES if not troubles()[name]]
    if not working:
        pytest.skip("no sandbox works here")
    assert choose().name == working[0]


def test_podman_is_passed_over_where_a_colon_is_in_the_path(tmp_path: Path) -> None:
    working = [name for name in NAMES if not troubles()[name] and name != "podman"]
    if not working:
        pytest.skip("no sandbox but podman works here")
    assert choose(None, make_tree(tmp_path / "a:b", {})).name == working[0]


def test_nothing_is_left_on_the_machine(sandbox: str, tmp_path: Path) -> None:
    def mounts() -> set[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return {line.split(" ")[4] for line in lines if str(tmp_path) in line}

    try_smokes(tmp_path, sandbox, one("exit 0"))
    assert mounts() == set()
    shutil.rmtree(tmp_path)
