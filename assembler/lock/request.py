"""What a lock was solved for, in the files that conda-lock would be given to solve the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import yaml

from assembler.lock.model import Lock

ENVIRONMENT: Final = "environment.yml"
VIRTUAL: Final = "virtual-packages.yml"


def environment_bytes(lock: Lock) -> bytes:
    """Return the environment.yml that conda-lock would be given to solve the same request."""
    data = {
        "channels": list(lock.channels),
        "dependencies": list(lock.specs),
        "platforms": [lock.platform],
    }
    head = "# What the lock was solved for, as conda-lock reads it.\n"
    return (head + yaml_text(data)).encode()


def virtual_packages_bytes(lock: Lock) -> bytes:
    """Return the virtual packages assumed, as conda-lock's --virtual-package-spec reads them."""
    packages = dict(sorted(lock.virtual_packages.items()))
    head = "# What is assumed of every machine that installs the lock, as conda-lock reads it.\n"
    return (head + yaml_text({"subdirs": {lock.platform: {"packages": packages}}})).encode()


def yaml_text(data: object) -> str:
    """Return plain data as YAML, keys in their order, no line ever folded."""
    text: str = yaml.dump(
        data, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True, width=1 << 30
    )
    return text


def content_hashes(lock: Lock) -> dict[str, str]:
    """Return conda-lock's own hash of the request, by platform."""
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import FakeRepoData, VirtualPackage

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / ENVIRONMENT
        source.write_bytes(environment_bytes(lock))
        request = make_lock_spec(src_files=[source], mapping_url="")
        assumed = FakeRepoData(base_path=folder)
        for package, value in sorted(lock.virtual_packages.items()):
            version, _, build = value.partition(" ")
            assumed.add_package(
                VirtualPackage(name=package, version=version, build_string=build),
                subdirs=[lock.platform],
            )
        assumed.write()
        return dict(compute_content_hashes(request, assumed))
