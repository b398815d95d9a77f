"""Projects of the data stack, for tests of locking."""

from __future__ import annotations

from pathlib import Path

import pytest

from assembler.lock.make import make_lock
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from assembler.stack import Profile
from assembler.workspace import Workspace
from tests import data_stack


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """A project with a filled channel, at a path with every awkward character."""
    return data_stack.workspace(tmp_path / "pro ject", channel=tmp_path / "ch + %41#é")


@pytest.fixture
def profile(project: Workspace) -> Profile:
    return project.stack().select(None)


@pytest.fixture
def lock(project: Workspace, profile: Profile) -> Lock:
    return make_lock(project, profile, SilentProgress())
