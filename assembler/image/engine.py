"""Images into container engines on this machine, through the archive that all of them load."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from assembler.errors import ImageError, MissingToolError
from assembler.image.archive import whole_images, write_archive
from assembler.image.layout import Layout
from assembler.progress import Progress

# Engines in the order they are looked for, with the command that reads an archive from stdin.
LOADERS: dict[str, tuple[str, ...]] = {
    "docker": ("docker", "load"),
    "podman": ("podman", "load"),
    "nerdctl": ("nerdctl", "load"),
}
FIRST_WITH_ZSTD = 23  # docker's major version


@dataclass(frozen=True)
class Engine:
    """An engine that answers; ``version`` is its server's."""

    name: str
    version: str

    @property
    def takes_zstd(self) -> bool:
        """Whether it reads zstd layers."""
        major = self.version.partition(".")[0]
        return self.name != "docker" or not major.isdigit() or int(major) >= FIRST_WITH_ZSTD


def _probe(name: str) -> Engine | str:
    """Return an engine, or why it cannot be used."""
    if shutil.which(name) is None:
        return f"{name} is not installed"
    form = "{{json .}}" if name != "podman" else "json"
    try:
        done = subprocess.run(
            [name, "version", "--format", form],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        data = json.loads(done.stdout) if done.returncode == 0 else {}
        # docker's client answers without a daemon; podman is client and server in one.
        server = data.get("Server") or (data.get("Client") if name != "docker" else None) or {}
        version = str(server.get("Version", ""))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{name} does not answer ({error})"
    if not version:
        words = done.stderr.strip().splitlines()
        return f"{name} does not answer ({(words or ['no server'])[-1]})"
    return Engine(name, version)


def find_engine(wanted: str | None = None) -> Engine:
    """Return the named engine, or the first that answers; MissingToolError says why none does."""
    names: Sequence[str] = (wanted,) if wanted else tuple(LOADERS)
    reasons = []
    for name in names:
        found = _probe(name)
        if isinstance(found, Engine):
            return found
        reasons.append(found)
    raise MissingToolError(
        "no container engine answers: " + ", ".join(reasons),
        remedy="install podman or start docker's daemon, or copy the layout with skopeo",
    )


def load(layout: Layout, engine: Engine, progress: Progress) -> str:
    """Pipe the layout's archive into an engine and return the engine's words.

    ImageError when the layout is not whole (no engine is started then) or the engine refuses it.
    Whatever else ends the writing ends the engine too.
    """
    whole_images(layout)
    if not engine.takes_zstd and _has_zstd(layout):
        raise ImageError(
            f"docker {engine.version} does not read zstd layers",
            remedy="assemble with --compression gzip, or load into docker 23 or newer",
        )
    with subprocess.Popen(
        LOADERS[engine.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        heard: dict[str, bytes] = {}
        # Both pipes are read while the archive goes in, or an engine with much to say would stop.
        ears = [
            threading.Thread(target=_listen, args=(heard, name, stream), daemon=True)
            for name, stream in (("out", process.stdout), ("err", process.stderr))
        ]
        for ear in ears:
            ear.start()
        broken = False
        try:
            write_archive(layout, process.stdin, progress)
            process.stdin.close()
        except BrokenPipeError:
            broken = True
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        except BaseException:
            _end(process)
            raise
        try:
            for ear in ears:
                ear.join()
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    if code or broken:
        words = heard.get("err", b"").decode(errors="replace").strip().splitlines()
        raise ImageError(
            f"{engine.name} {engine.version} refuses the image ({(words or [str(code)])[-1]})",
            remedy=f"check that {engine.name} has room and works otherwise",
        )
    return heard.get("out", b"").decode(errors="replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill an engine's client and its children, which would wait for the archive's end for ever."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _listen(heard: dict[str, bytes], name: str, stream: IO[bytes]) -> None:
    heard[name] = stream.read()


def _has_zstd(layout: Layout) -> bool:
    return any(
        layer["mediaType"].endswith("+zstd")
        for entry in layout.entries()
        for layer in (layout.document(entry["digest"]) or {}).get("layers", ())
    )
