"""An interrupt at any point of the start is one line and exit code 130."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Sends the signal to itself when the named module is about to be imported.
PROGRAM = """
import os, signal, sys

class Striker:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.Signals[number])

module, number, script = sys.argv[1:4]
sys.argv = ["assembler", *sys.argv[4:]]
sys.meta_path.insert(0, Striker())
if script == "module":
    import runpy
    runpy.run_module("assembler", run_name="__main__")
else:
    from assembler.cli import main
    main()
"""
MODULES = ["click", "assembler.errors", "assembler.cli.lock", "pydantic", "assembler.lock.check"]


def struck(
    module: str, number: str, *arguments: str, script: str = "console"
) -> subprocess.CompletedProcess[str]:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.run(
        [sys.executable, "-c", heard + PROGRAM, module, number, script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("script", ["module", "console"])
def test_an_interrupt_while_modules_load_is_one_line(module: str, script: str) -> None:
    done = struck(module, "SIGINT", "lock", "--check", script=script)
    assert done.returncode == 130
    assert done.stderr.startswith("assembler: interrupted")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_it_is_an_object_with_json() -> None:
    done = struck("click", "SIGTERM", "lock", "--check", "--json")
    assert done.returncode == 130
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == 130
    assert {"kind", "saw", "remedy"} <= set(error)


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program, "click", "SIGINT", "console", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("assembler")
