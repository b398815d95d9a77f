"""Unpack the source tree in the working folder, patch it, and build its wheel into ``dist/``.

    python tree.py --python "$PYTHON"                       the whole tree
    python tree.py --python "$PYTHON" --folder python/x     one project of it

The tree is the one ``*.tar`` there, below a single folder. Patches are those of the recipe's
``patches/``, in the order of their names; one that does not apply ends the build. The wheel is
built without isolation and without an index: what it is built with are the host packages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

TREE = Path("tree")


def unpack(folder: Path) -> None:
    """Unpack the only tar of the working folder, without the folder that it holds."""
    archives = sorted(Path.cwd().glob("*.tar"))
    if len(archives) != 1:
        names = ", ".join(archive.name for archive in archives) or "none"
        sys.exit(f"tree.py: wanted exactly one *.tar in the working folder, found {names}")
    with tarfile.open(archives[0]) as tar:
        members = []
        for member in tar:
            _top, _, member.name = member.name.partition("/")
            if member.name:
                members.append(member)
        # Debian 12's CPython 3.11.2 has no extraction filters; the tar is the snapshot that fetch
        # made of a checkout.
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, members, **options)  # noqa: S202


def patch(folder: Path, patches: Path) -> None:
    """Apply the recipe's patches."""
    for file in sorted(patches.glob("*.patch")):
        print(f"tree.py: applying {file.name}", flush=True)
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(file.absolute())], cwd=folder, check=True
        )


def main() -> None:
    """Run the build script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the host environment's python")
    parser.add_argument("--folder", default=".", help="the project within the tree")
    parser.add_argument("--version", help="what setuptools-scm would read from tags")
    options = parser.parse_args()
    unpack(TREE)
    patch(TREE, Path(os.environ["RECIPE_DIR"]) / "patches")
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "PYTHONPATH": ""}
    if options.version:
        environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = options.version
    command = [options.python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--verbose", "--wheel-dir", "dist"]
    done = subprocess.run([*command, f"./{TREE / options.folder}"], env=environment, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
