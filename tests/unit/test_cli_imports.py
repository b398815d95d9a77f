"""What commands load: a run with nothing to do is mostly the start of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Slow to load, and wanted by few ways of using a command: loaded by those alone.
SLOW = {"oras", "requests", "jsonschema", "cyclonedx", "conda_lock", "rich.progress"}


@pytest.mark.parametrize("command", ["image", "clean_image", "lock", "verify", "build", "fetch"])
def test_no_command_loads_what_only_some_of_its_ways_need(command: str) -> None:
    program = f"import sys, assembler.cli.{command}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert f"assembler.cli.{command}" in loaded
    assert not loaded & SLOW
