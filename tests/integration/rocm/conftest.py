"""The rocm profile's own recipes with stand-in sources, and a small channel as conda-forge."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tomlkit
from rattler_build import assemble_package

from assembler.channel.index import publish
from assembler.progress import SilentProgress
from assembler.sources.given import take
from assembler.sources.store import Store
from assembler.workspace import Workspace
from tests.conftest import ROOT
from tests.integration.gfx.conftest import Build, Llvm, build, llvm
from tests.integration.rocm.standins import (
    FAT,
    Artefact,
    Code,
    aiter_tree,
    atom_tree,
    rocm72,
)

__all__ = ["build", "llvm"]

PATCH = "recipes/rocm/amd-aiter/patches/0001-compiled-modules-by-target.patch"
# What the recipes want of conda-forge: name -> version. Only python does anything.
FORGE = {
    "python": "3.12.9", "python_abi": "3.12", "pip": "25.0", "setuptools": "80.0",
    "setuptools-scm": "8.0", "wheel": "0.45", "packaging": "25.0", "psutil": "7.0", "ninja": "1.12",
    "pybind11": "3.0.4", "pandas": "2.3.3", "numpy": "2.3.0", "pillow": "11.0", "filelock": "3.20",
    "fsspec": "2026.1.0", "jinja2": "3.1.6", "networkx": "3.5", "sympy": "1.14",
    "typing_extensions": "4.15", "libgcc": "15.1.0", "libstdcxx": "15.1.0", "libdrm": "2.4.125",
    "libelf": "0.193", "numactl": "2.0.18", "rdma-core": "58.0", "einops": "0.8.2",
    "huggingface_hub": "1.0", "msgpack-python": "1.1", "prometheus_client": "0.25", "quart": "0.20",
    "safetensors": "0.6", "setproctitle": "1.3", "uvloop": "0.22", "transformers": "5.2.0",
    "pyzmq": "27.0", "fastapi": "0.136.0",
}  # fmt: skip
# What tests of packages import.
MODULES = {"einops": "einops", "msgpack-python": "msgpack", "quart": "quart"}
PYTHON = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
PYTHONPATH="$here/../lib/python3.12/site-packages" exec {python} "$@"
"""


@pytest.fixture(scope="session")
def code(llvm: Llvm, build: Build) -> Code:
    """GPU code for the targets of fat wheels, and a library without any."""
    source = llvm.folder / "host.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    host = llvm.folder / "host.so"
    llvm.run("clang++", "-shared", "-fPIC", "-nostdlib", "-fuse-ld=lld", source, "-o", host)
    return Code(
        objects={name: build("device", (name,), ("device",)).read_bytes() for name in FAT},
        library=build("shared", FAT, ("library",)).read_bytes(),
        host=host.read_bytes(),
    )


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do nothing."""


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A channel in conda-forge's place, served: its python is this one, all else is empty."""
    folder = tmp_path_factory.mktemp("forge")
    packages = []
    for name, version in FORGE.items():
        files = folder / "files" / name
        where = files / "share" / name
        where.mkdir(parents=True)
        (where / "stand-in").write_text(f"{name} {version}\n")
        build_string, depends = "0", []
        if name in MODULES:
            module = files / "lib" / "python3.12" / "site-packages" / MODULES[name]
            module.mkdir(parents=True)
            (module / "__init__.py").touch()
        if name == "python":
            script = files / "bin" / "python3.12"
            script.parent.mkdir()
            script.write_text(PYTHON.format(python=sys.executable))
            script.chmod(0o755)
            (files / "bin" / "python").symlink_to("python3.12")
            build_string, depends = "0_cpython", ["python_abi 3.12.* *_cp312"]
        elif name == "python_abi":
            build_string = "0_cp312"
        made = folder / "made" / "linux-64"
        assemble_package(
            name, version, "linux-64", build_string, made, files_dir=files, depends=depends,
            license="MIT", timestamp=datetime(2025, 1, 1, tzinfo=UTC), compression_level=1,
            detect_prefix=False,
        )  # fmt: skip
        packages.append(made / f"{name}-{version}-{build_string}.conda")
    channel = folder / "channel"
    publish(channel, packages, progress=SilentProgress())
    handler = partial(Quiet, directory=str(channel))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def repin(workspace: Workspace, artefacts: Iterable[Artefact]) -> None:
    """Put stand-ins in the pins' places: their bytes and hashes, the same names and versions."""
    store = Store(workspace.store)
    by_file = {one.file: one for one in artefacts}
    used = set()
    for path in workspace.recipes.rglob("sources.toml"):
        document = tomlkit.parse(path.read_text())
        for entry in document.get("rocm", []):
            one = by_file.get(str(entry.get("file", "")))
            if one is None:
                continue
            used.add(one.file)
            entry["sha256"], entry["size"] = one.sha256, len(one.data)
            scratch = workspace.root / "scratch"
            scratch.write_bytes(one.data)
            store.add(scratch, one.sha256, move=True)
        path.write_text(tomlkit.dumps(document))
    assert used == set(by_file), f"no pin has the file of {set(by_file) - used}"


Project = Callable[..., Workspace]


@pytest.fixture(scope="session")
def make_project(forge: str, code: Code, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Make a checkout of the real recipes whose sources are stand-ins."""
    patch = (ROOT / PATCH).read_text()

    def make(root: Path) -> Workspace:
        shutil.copytree(ROOT / "recipes", root / "recipes")
        text = (ROOT / "stack.toml").read_text()
        text = text.replace('channels = ["conda-forge"]', f'channels = ["{forge}"]')
        # An image of packages alone: Debian's are no part of this.
        text = re.sub(r"packages = \[[^]]*\]", "packages = []", text)
        (root / "stack.toml").write_text(text)
        workspace = Workspace.at(root)
        repin(workspace, rocm72(code))
        trees = tmp_path_factory.mktemp("trees")
        given = {"amd-aiter": aiter_tree(trees / "aiter", code, patch), "atom": trees / "atom"}
        atom_tree(given["atom"])
        take(workspace, [f"{name}={path}" for name, path in given.items()])
        return workspace

    return make


def sha256(data: bytes) -> str:
    """Hash some bytes."""
    return hashlib.sha256(data).hexdigest()
