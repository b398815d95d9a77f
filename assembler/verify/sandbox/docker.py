"""Runs programs in an image with a docker daemon that answers.

The image goes in as a stream that every docker since 20.10 reads: docker's manifest.json over the
layout's own blobs. It is removed again at the end of the session.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from assembler.errors import ImageError
from assembler.verify.oci import OciImage
from assembler.verify.sandbox.base import Command, Session, host_environment
from assembler.verify.sandbox.podman import last_line
from assembler.verify.tree import Tree

TAG_PREFIX = "under-verification"


@dataclass(frozen=True)
class DockerSession:
    """An image in docker's store; environment and user come from the image's configuration."""

    image: str
    label: str

    def command_line(self, command: Command) -> list[str]:
        """Return the docker run command line."""
        extra = [f"--env={name}={value}" for name, value in command.extra_env.items()]
        return [
            "docker", "run", "--rm", "--pull=never", f"--label={self.label}", "--network=none",
            "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp",
            *extra,
            f"--workdir={command.workdir}", f"--entrypoint={command.argv[0]}",
            self.image, *command.argv[1:],
        ]  # fmt: skip


@dataclass(frozen=True)
class Docker:
    """docker, when its daemon answers; strace cannot see what the daemon starts."""

    name: str = "docker"
    traceable: bool = False

    @property
    def description(self) -> str:
        """Docker and the daemon's version."""
        done = _docker("version", "--format", "{{.Server.Version}}")
        return f"docker {done.stdout.decode().strip()}"

    @contextmanager
    def session(self, tree: Tree) -> Iterator[Session]:
        """Load the image, and remove it afterwards."""
        if tree.image is None:
            raise ImageError(f"{tree.label} is no image", remedy="choose another sandbox")
        tag = f"{TAG_PREFIX}:{tree.image.manifest.digest[7:19]}-{os.getpid()}"
        label = f"{TAG_PREFIX}={os.getpid()}"
        loader = subprocess.Popen(
            ["docker", "load", "--quiet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=host_environment(),
        )
        assert loader.stdin is not None
        try:
            with loader.stdin:
                write_load_stream(tree.image, tag, loader.stdin)
        except BrokenPipeError:
            pass  # the daemon's own words say more
        assert loader.stderr is not None
        complaint = loader.stderr.read().decode(errors="replace")
        if loader.wait() != 0:
            raise ImageError(
                f"docker does not accept {tree.label} ({last_line(complaint)})",
                remedy="use docker 23 or newer for zstd layers, or choose another sandbox",
            )
        try:
            yield DockerSession(tag, label)
        finally:
            # A program whose time was up may run on under the daemon.
            left = _docker("ps", "--all", "--quiet", f"--filter=label={label}").stdout.split()
            if left:
                _docker("rm", "--force", *(name.decode() for name in left))
            _docker("rmi", "--force", tag)


def write_load_stream(image: OciImage, tag: str, out: IO[bytes]) -> None:
    """Write what ``docker load`` reads: the blobs as they are, and manifest.json naming them."""
    table = [
        {
            "Config": image.config_blob.file,
            "RepoTags": [tag],
            "Layers": [layer.file for layer in image.layers],
        }
    ]
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for blob in {blob.file: blob for blob in (image.config_blob, *image.layers)}.values():
            item = tarfile.TarInfo(blob.file)
            item.size = blob.size
            with image.blobs.open(blob.file) as stream:
                archive.addfile(item, stream)
        text = json.dumps(table).encode()
        item = tarfile.TarInfo("manifest.json")
        item.size = len(text)
        archive.addfile(item, io.BytesIO(text))


def _docker(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["docker", *arguments],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=host_environment(),
        timeout=60,
    )
