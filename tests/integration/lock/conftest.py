"""Projects of the data stack and a loopback web server, for the commands of locking."""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from assembler.lock.make import update_lock
from assembler.progress import SilentProgress
from assembler.workspace import Workspace
from tests import data_stack


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """A project with a filled channel at an awkward path, not locked yet."""
    return data_stack.workspace(tmp_path / "pro ject", channel=tmp_path / "ch + %41#é")


@pytest.fixture
def locked(project: Workspace) -> Workspace:
    """The same, locked."""
    update_lock(project, project.stack().select(None), SilentProgress())
    return project


@dataclass
class Served:
    """A folder on a loopback web server, and the requests it answered."""

    url: str
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve ``tmp_path/web`` at a loopback address for as long as the test runs."""
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler-cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "web"
    folder.mkdir()
    result = Served("")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            result.requests.append(self.path)

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    result.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield result
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def no_network() -> tuple[str, ...]:
    """The command prefix that runs a program in a namespace without any route."""
    for prefix in (("unshare", "-n"), ("unshare", "-r", "-n")):
        try:
            done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("unshare is not on this machine")
        if done.returncode == 0:
            return prefix
    pytest.skip(f"this machine allows no network namespace ({done.stderr.strip()})")
