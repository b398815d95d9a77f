"""SIGKILL at any moment of a publish: the channel stays valid and the next run completes it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from assembler.channel.index import check, publish, read_index, read_records
from tests.tiny_packages import make_package

ROUNDS = 20
CHILD = """
import sys
from pathlib import Path
from assembler.channel.index import publish
channel, folder = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for build in sorted(folder.iterdir(), key=lambda path: int(path.name)):
    old = [path.name for path in channel.glob("*/*.conda")]
    publish(channel, sorted(build.glob("*.conda")), remove=old)
"""


def test_a_killed_publish_is_completed(tmp_path: Path) -> None:
    channel = tmp_path / "channel"
    publish(channel, [make_package(tmp_path / "o", name, build="h0_0") for name in "abcd"])
    chance = random.Random(5)
    for _ in range(ROUNDS):
        folder = tmp_path / "builds"
        shutil.rmtree(folder, ignore_errors=True)
        for number in range(1, 60):
            for name in "abcd":
                make_package(folder / str(number), name, build=f"h{number}_0")
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(channel), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(chance.uniform(0, 0.25))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
        # What a reader sees now: whole indexes, and every package they name as they describe it.
        for subdir in ("linux-64", "noarch"):
            named = read_index(channel / subdir / "repodata.json")
            assert {record.file for record in read_records(channel) if record.subdir == subdir} == (
                set(named)
            )
        assert not {problem.kind for problem in check(channel)} - {
            "leftover", "unindexed", "unfinished", "index",
        }  # fmt: skip
        # The next run needs no help.
        final = [make_package(tmp_path / "o", name, build="h0_0") for name in "abcd"]
        stale = [path.name for path in channel.glob("*/*.conda")]
        records = publish(channel, final, remove=stale)
        assert [(record.name, record.build) for record in records] == [(n, "h0_0") for n in "abcd"]
        assert check(channel) == ()
        assert sorted(path.name for path in (channel / "noarch").iterdir()) == sorted(
            [*(record.file for record in records), "repodata.json", "repodata.json.zst"]
        )


def test_an_unchanged_package_of_a_gigabyte_would_not_be_read(tmp_path: Path) -> None:
    """The stamps of a publish hold for the next process, so only what is new is read."""
    channel = tmp_path / "channel"
    publish(channel, [make_package(tmp_path / "o", name) for name in "abc"])
    fresh = make_package(tmp_path / "o", "d")
    code = (
        "import sys, json; from pathlib import Path\n"
        "import assembler.channel.records as records, assembler.channel.scan as scan\n"
        "import assembler.channel.index as index\n"
        "read = []\n"
        "real = records.inspect\n"
        "spy = lambda path: (read.append(path.name), real(path))[1]\n"
        "scan.inspect = index.inspect = spy\n"
        "index.publish(Path(sys.argv[1]), [Path(sys.argv[2])])\n"
        "print(json.dumps(read))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(channel), str(fresh)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [fresh.name]
