"""How smokes are judged, what the trace shows, and when an image cannot be tried at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assembler.errors import ConfigError, ImageError
from assembler.stack import Smoke
from assembler.verify.findings import Severity
from assembler.verify.gates import smoke as gate
from assembler.verify.sandbox import Completed, choose
from assembler.verify.sandbox.base import Command
from assembler.verify.sandbox.base import run as run_command
from assembler.verify.sandbox.podman import Podman
from assembler.verify.sandbox.probe import program
from assembler.verify.sandbox.trace import Exec, parse_trace
from assembler.verify.smoke import SmokeRun, SmokeRuns, interpreter, judge, user_of
from tests.verify_making import Item, make_tree

SMOKE = Smoke(id="s", summary="it runs", code="pass")
FORESEEN = Smoke(id="s", summary="it runs", code="pass", expect_failure="(?i)no hipcc")


@pytest.mark.parametrize(
    ("smoke", "code", "output", "outcome", "instead"),
    [
        (SMOKE, 0, "fine", "pass", None),
        (SMOKE, 1, "broken", "fail", None),
        (SMOKE, None, "slow", "timeout", None),
        (FORESEEN, 0, "fine", "pass", None),
        (FORESEEN, 1, "x\nError: No HIPCC here \nbye", "does-instead", "Error: No HIPCC here"),
        (FORESEEN, 1, "something else", "fail", None),
        (FORESEEN, None, "no hipcc", "timeout", None),
    ],
)
def test_judgement(
    smoke: Smoke, code: int | None, output: str, outcome: str, instead: str | None
) -> None:
    assert judge(smoke, Completed(code, output, 1.0)) == (outcome, instead)


def run(outcome: str, **more: object) -> SmokeRun:
    fields: dict[str, object] = {
        "id": "s", "summary": "it runs", "outcome": outcome, "exit_code": 1, "seconds": 1.0,
        "timeout": 9, "output": "first\nlast",
    }  # fmt: skip
    return SmokeRun.model_validate(fields | more)


@pytest.mark.parametrize(
    ("one", "identity", "severity", "verdict"),
    [
        (run("fail"), "smoke/failed", Severity.ERROR, "fail"),
        (run("timeout", exit_code=None), "smoke/timeout", Severity.ERROR, "fail"),
        (run("does-instead", instead="no hipcc"), "smoke/does-instead", Severity.NOTE, "pass"),
        (run("pass", unexpected_pass=True), "smoke/passes-now", Severity.WARNING, "pass"),
    ],
)
def test_each_outcome_has_its_finding(
    one: SmokeRun, identity: str, severity: Severity, verdict: str
) -> None:
    result = gate.check(SmokeRuns(sandbox="bwrap", description="", user="1:1", runs=(one,)))
    (finding,) = result.findings
    assert (finding.id, finding.severity, result.verdict) == (identity, severity, verdict)


def test_a_foreseen_failure_is_told_as_what_it_does_instead() -> None:
    one = run("does-instead", instead="no hipcc")
    (finding,) = gate.check(
        SmokeRuns(sandbox="bwrap", description="", user="1:1", runs=(one, run("pass")))
    ).findings
    assert "does this instead: no hipcc" in finding.what


# -- the image -------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["", "0:0", "root", "nobody", "0"])
def test_an_image_that_would_run_as_root_or_a_name_is_refused(user: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="user"):
        user_of(make_tree(tmp_path, {}, user=user))


def test_the_interpreter_is_the_entry_point_or_the_environment_s_python(tmp_path: Path) -> None:
    files = {"opt/atom/bin/python3.11": Item(b"", mode=0o755), "usr/bin/py": Item(b"", mode=0o755)}
    files["opt/atom/bin/python"] = Item(target="python3.11")
    env = {"PATH": "/usr/bin"}
    for entry, wanted in (
        (("py",), "/usr/bin/py"),
        (("/usr/bin/py",), "/usr/bin/py"),
        (("/usr/bin/py", "-m", "server"), "/opt/atom/bin/python"),
        ((), "/opt/atom/bin/python"),
    ):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        tree = make_tree(root, files, entrypoint=entry, env=env, prefix="opt/atom")
        assert interpreter(tree) == wanted
    with pytest.raises(ImageError, match="interpreter"):
        interpreter(make_tree(tmp_path / "none", {}, entrypoint=("/bin/x",)))


def test_an_unknown_sandbox_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no sandbox"):
        choose("qemu")


def test_podman_says_that_it_takes_no_colon(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "a:b", {})
    with pytest.raises(ImageError, match="colon"), Podman((), "").session(tree):
        pass


def test_an_interrupt_ends_the_program_and_stays_an_interrupt() -> None:
    class Outside:
        def command_line(self, command: Command) -> list[str]:
            return list(command.argv)

    me = os.getpid()
    command = Command(argv=("sh", "-c", f"kill -INT {me}; exec sleep 600"), timeout=600)
    with pytest.raises(KeyboardInterrupt):
        run_command(Outside(), command)


def test_the_probe_is_a_real_program() -> None:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "probe")
        place.write_bytes(program())
        place.chmod(0o755)
        assert subprocess.run([place], check=False).returncode == 42


# -- the trace -------------------------------------------------------------------------------------

LOG = r"""
100   execve("/usr/bin/bwrap", ["bwrap", "--unshare-all"], 0x7ffd /* 20 vars */) = 0
101   execve("/opt/atom/bin/python", ["/opt/atom/bin/python", "-c", "print(\"hi\")"], 0x1 /* 3 vars */) = 0
102   execve("/bin/sh", ["sh", "-c", "gcc x.c"], 0x2 /* 3 vars */) = -1 ENOENT (No such file or directory)
103   execve("/usr/local/bin/gcc", ["gcc", "x.c"], 0x2 <unfinished ...>
104   execveat(3, "/usr/bin/ld", ["ld"], 0x3 /* 1 var */, 0) = 0
103   <... execve resumed>) = -1 EACCES (Permission denied)
100   execve("/usr/bin/cleanup", ["cleanup"], 0x2 /* 3 vars */) = 0
105   execve("/usr/bin/runc", ["runc", "state"], 0x2 /* 3 vars */) = 0
105   execve("/usr/bin/helper-of-runc", ["helper"], 0x2 /* 3 vars */) = 0
102   +++ exited with 127 +++
101   +++ exited with 0 +++
106   execve("/usr/bin/podman", ["podman", "container", "cleanup"], 0x2 /* 3 vars */) = 0
""".strip().splitlines()  # noqa: E501


def test_only_the_program_and_its_children_are_in_the_trace() -> None:
    assert parse_trace(LOG, "/opt/atom/bin/python") == (
        Exec("/opt/atom/bin/python", ("/opt/atom/bin/python", "-c", 'print("hi")')),
        Exec("/bin/sh", ("sh", "-c", "gcc x.c"), "ENOENT"),
        Exec("/usr/bin/ld", ("ld",)),
        Exec("/usr/local/bin/gcc", ("gcc", "x.c"), "EACCES"),
    )


def test_a_program_that_never_started_leaves_nothing() -> None:
    assert parse_trace(LOG[:1], "/opt/atom/bin/python") == ()
