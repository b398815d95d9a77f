"""One writer at a time, and who it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from assembler.channel.guard import describe_owner, exclusive
from assembler.channel.location import state_folder
from assembler.errors import BusyError
from assembler.progress import SilentProgress

HOLD = """
import sys, time
from pathlib import Path
from assembler.channel.guard import exclusive
from assembler.progress import SilentProgress
with exclusive(Path(sys.argv[1]), SilentProgress()):
    print("held", flush=True)
    sys.stdin.read()
"""


class Ear(SilentProgress):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, message: str) -> None:
        self.heard.append(message)


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_the_message_names_the_owner(tmp_path: Path) -> None:
    with holder(tmp_path / "c") as process:
        with (
            pytest.raises(BusyError, match=rf"process {process.pid} on .* since "),
            exclusive(tmp_path / "c", SilentProgress(), timeout=0),
        ):
            pass
        process.communicate()
    with exclusive(tmp_path / "c", SilentProgress(), timeout=5):
        pass


def test_waiting_is_said_once_and_ends(tmp_path: Path) -> None:
    ear = Ear()
    with holder(tmp_path / "c") as process:
        assert process.stdin
        timer = threading.Timer(0.3, process.stdin.close)
        timer.start()
        with exclusive(tmp_path / "c", ear, timeout=30):
            pass
        timer.join()
    assert len(ear.heard) == 1
    assert re.match(rf"waiting for .*c, held by process {process.pid} ", ear.heard[0])


def test_a_killed_owner_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path / "c") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with exclusive(tmp_path / "c", SilentProgress(), timeout=5):
            pass


def test_the_same_thread_enters_again_and_another_does_not(tmp_path: Path) -> None:
    result: list[str] = []

    def other() -> None:
        try:
            with exclusive(tmp_path, SilentProgress(), timeout=0):
                result.append("in")
        except BusyError:
            result.append("busy")

    with exclusive(tmp_path, SilentProgress()):
        with exclusive(tmp_path, SilentProgress(), timeout=0):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert result == ["busy"]


def test_state_lies_beside_the_channel_and_else_among_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = tmp_path / "ch"
    assert state_folder(channel) == tmp_path / ".ch.state"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not state_folder(channel).is_relative_to(channel)
    assert state_folder(channel) == state_folder(tmp_path / "x" / ".." / "ch")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff"])
def test_an_unreadable_owner_is_another_process(data: bytes) -> None:
    assert describe_owner(data) == "another process"
