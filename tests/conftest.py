"""Fixtures shared by every test: the tiny stack, and the real command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from assembler.workspace import STORE_VARIABLE, Workspace

# The user's own store must not take part in tests; only those of the real stack are given it.
REAL_STORE = os.environ.pop(STORE_VARIABLE, None)
os.environ.pop("ASSEMBLER_PROFILE", None)
TINY = Path(__file__).parent / "tiny"
ROOT = Path(__file__).parent.parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tiny(tmp_path: Path) -> Workspace:
    """A checkout of the tiny stack of its own."""
    root = tmp_path / "tiny"
    shutil.copytree(TINY, root)
    return Workspace.at(root)


def run_assembler(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "assembler", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture
def assembler() -> Run:
    """The command line, as a function."""
    return run_assembler


@pytest.fixture
def real_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test and what it runs the store that the real stack was made from."""
    if REAL_STORE is not None:
        monkeypatch.setenv(STORE_VARIABLE, REAL_STORE)
