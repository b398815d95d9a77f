"""A loopback file server that can misbehave, tiny wheels, and tiny projects."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from assembler.workspace import Workspace


@dataclass
class Served:
    """One path of the server and how it behaves."""

    data: bytes
    ranges: bool = True
    failures: list[int] = field(default_factory=list)  # statuses of the first answers
    cut: list[int] = field(default_factory=list)  # bytes after which the first answers break off
    wait: threading.Event | None = None  # half of the bytes come at once, the rest after this
    user: str | None = None  # user:password
    content_type: str = "application/octet-stream"


class Server(ThreadingHTTPServer):
    """Files by path; ``log`` has (path, Range header or '') of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.log: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path: str, data: bytes, **behaviour: object) -> str:
        self.files[path] = Served(data, **behaviour)  # type: ignore[arg-type]
        return self.url + path

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that went away are what these tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.log.append((self.path, wanted))
        served = self.server.files.get(unquote(self.path))
        if served is None:
            self.answer(404)
        elif served.user and self.headers.get("Authorization") != basic(served.user):
            self.answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        elif served.failures:
            self.answer(served.failures.pop(0))
        else:
            self.send(served, wanted)

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, served: Served, wanted: str) -> None:
        data, start = served.data, 0
        if wanted and served.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.answer(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", served.content_type)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        if served.cut:
            self.wfile.write(body[: served.cut.pop(0)])
            self.close_connection = True
            return
        if served.wait and not served.wait.is_set():
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            served.wait.wait(60)
            body = body[len(body) // 2 :]
        self.wfile.write(body)


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield one
    one.shutdown()
    thread.join()
    one.server_close()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class TinyWheel:
    name: str
    version: str
    file: str
    data: bytes

    @property
    def sha256(self) -> str:
        return sha(self.data)


def make_wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
    text: str = "",
) -> TinyWheel:
    """A wheel of one module, made in memory."""
    underscored = name.replace("-", "_")
    info = f"{underscored}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, content in (
            (f"{underscored}.py", f"version = {version!r}\n# {text}\n"),
            (f"{info}/METADATA", metadata),
            (f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"),
            (f"{info}/RECORD", ""),
        ):
            archive.writestr(zipfile.ZipInfo(path, (2025, 1, 1, 0, 0, 0)), content)
    return TinyWheel(name, version, f"{underscored}-{version}-{tag}.whl", stream.getvalue())


@pytest.fixture
def index(server: Server) -> Callable[..., str]:
    """Serves wheels as a simple index below /simple/ and returns its address."""

    def serve(*wheels: TinyWheel, hashes: bool = True, user: str | None = None) -> str:
        pages: dict[str, str] = {}
        for wheel in wheels:
            fragment = f"#sha256={wheel.sha256}" if hashes else ""
            server.put(f"/files/{wheel.file}", wheel.data, user=user)
            link = f'<a href="/files/{wheel.file}{fragment}">{wheel.file}</a><br>'
            pages[wheel.name] = pages.get(wheel.name, "<!DOCTYPE html><html><body>") + link
        for name, page in pages.items():
            server.put(f"/simple/{name}/", page.encode(), content_type="text/html", user=user)
        return f"{server.url}/simple/"

    return serve


@pytest.fixture
def pip_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes pip know nothing but what is given (``index_url=…``, ``find_links=…``)."""
    import os

    for key in list(os.environ):
        if key.startswith("PIP_") or key.lower().endswith("_proxy"):
            monkeypatch.delenv(key)
    configuration = tmp_path / "pip.conf"
    configuration.write_text("")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    def configure(**values: str) -> None:
        lines = [f"{key.replace('_', '-')} = {value}\n" for key, value in values.items()]
        configuration.write_text("[global]\n" + "".join(lines))

    configure(index_url="http://127.0.0.1:9/simple/")
    return configure


STACK = """
default_profile = "tiny"
[profile.tiny]
summary = "tiny"
python = "{python}"
variants = []
recipes = ["one", "two", "tree"]
{wheels}
root = "one"
root_without_source = "one"
virtual_packages = {{ __glibc = "2.36" }}
[profile.tiny.image]
name = "tiny"
user = "65532:65532"
entrypoint = ["/bin/x"]
base = {{ suite = "trixie", glibc = "2.41", packages = [] }}
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Workspace]:
    """Makes a project whose recipes have the given sources.toml texts."""

    def make(*, python: str = "3.11", wheels: str | None = None, **sources: str) -> Workspace:
        root = tmp_path / "my project +"
        line = 'wheels = "recipes/wheels/tiny.toml"' if wheels is not None else ""
        for recipe, text in sources.items():
            path = root / "recipes" / recipe / "sources.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if wheels is not None:
            (root / "recipes" / "wheels").mkdir(parents=True, exist_ok=True)
            (root / "recipes" / "wheels" / "tiny.toml").write_text(wheels)
        (root / "stack.toml").write_text(STACK.format(python=python, wheels=line))
        return Workspace.at(root)

    return make


def entry(table: str = "tiny", **values: object) -> str:
    """One pin as TOML."""
    import json

    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    return f"[[{table}]]\n{''.join(lines)}\n"


def wheel_entry(wheel: TinyWheel, table: str = "tiny", **more: object) -> str:
    """A wheel's pin as TOML."""
    values = {"kind": "pypi", "name": wheel.name, "version": wheel.version, "file": wheel.file}
    return entry(table, **{**values, "sha256": wheel.sha256, **more})
