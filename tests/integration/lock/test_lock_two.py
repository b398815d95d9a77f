"""Two processes at once on one channel and one lock: nothing is corrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from assembler.channel.index import check
from assembler.lock.check import Verdict, check_lock
from assembler.lock.files import read_lock
from assembler.workspace import Workspace

ROUNDS = 20
CHILD = f"""
import sys
from pathlib import Path
from assembler.channel.index import publish
from assembler.cli.main import leave
from assembler.lock.make import update_lock
from assembler.progress import LineProgress
from assembler.workspace import Workspace
from tests import data_stack

root, channel, me, out = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
project = Workspace.at(root, channel=channel)
profile = project.stack().select(None)
print("ready", flush=True)
sys.stdin.readline()
for number in range({ROUNDS}):
    made = data_stack.packages(out / me, build=f"h{{number:07d}}_0")
    stale = [path.name for path in channel.glob("*/*.conda")]
    publish(channel, made, remove=stale, progress=LineProgress())
    update_lock(project, profile, LineProgress())
(out / f"{{me}}.done").touch()
leave(0)
"""


def test_building_and_locking_at_once(project: Workspace, tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHILD,
                str(project.root),
                str(project.channel),
                me,
                str(tmp_path),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for me in ("one", "two")
    ]
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
    errors = [child.communicate(timeout=240)[1] for child in children]
    for me, text in zip(("one", "two"), errors, strict=True):
        assert (tmp_path / f"{me}.done").exists(), text
    # Whoever waited was told for whom.
    waited = [line for text in errors for line in text.splitlines() if "waiting for" in line]
    assert all("held by process" in line for line in waited)
    assert check(project.channel) == ()
    profile = project.stack().select(None)
    assert read_lock(project.lock_folder(profile)).packages
    assert check_lock(project, profile).verdict is Verdict.FRESH
    assert not list(project.lock_folder(profile).glob(".*"))
