"""Check that a device package holds code for its own GPU target and for no other.

    python device.py --gfx … [--may-be-none] [--modules 'aiter/jit/*.so' --into lib/aiter/…]
    python device.py --family …                         what a family's members share

Reads every file that the build laid under ``$PREFIX``: no GPU is needed. A package that holds none
is an error unless ``--may-be-none`` or a family says that this can be. With ``--modules`` the
files of the wheel in ``dist/`` that fit the pattern are laid into a folder of their own first, so
that packages for several targets install side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from assembler.targets import family_of
from assembler.verify.gfx import CodeObject, inventory


def lay_modules(pattern: str, folder: Path) -> None:
    """Copy the modules that fit the pattern out of the wheel, flat, and make their build folder."""
    wheel = next(iter(sorted(Path("dist").glob("*.whl"))), None)
    if wheel is None:
        sys.exit("device.py: there is no wheel in dist/")
    (folder / "build").mkdir(parents=True, exist_ok=True)
    (folder / "build" / ".keep").touch()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatchcase(name, pattern)]
        if not names:
            sys.exit(f"device.py: {wheel.name} has no {pattern}; nothing was compiled")
        for name in names:
            (folder / Path(name).name).write_bytes(archive.read(name))


def new_files(prefix: Path) -> Iterator[Path]:
    """Yield the files of the package being built: those that no host package brought."""
    brought: set[str] = set()
    for record in (prefix / "conda-meta").glob("*.json"):
        brought |= set(json.loads(record.read_text(encoding="utf-8"))["files"])
    for folder, folders, names in os.walk(prefix):
        here = Path(folder)
        if here == prefix and "conda-meta" in folders:
            folders.remove("conda-meta")
        for name in sorted(names):
            if (here / name).relative_to(prefix).as_posix() not in brought:
                yield here / name


def belongs(processor: str, target: str | None, family: str | None) -> bool:
    """Tell whether code for a processor may be in the package of a target, or of a family."""
    if target is not None:
        return processor == target
    return family_of(processor) == family or processor.startswith(f"{family}-")


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gfx", help="the only target")
    parser.add_argument("--family", help="its members, or the family's own code")
    parser.add_argument("--may-be-none", action="store_true", help="upstream may have nothing")
    parser.add_argument("--modules", help="pattern of the wheel's compiled modules")
    parser.add_argument("--into", help="folder below the prefix")
    options = parser.parse_args()
    if (options.gfx is None) == (options.family is None):
        parser.error("give --gfx or --family")
    prefix = Path(os.environ["PREFIX"])
    if options.modules and options.into:
        lay_modules(options.modules, prefix / options.into)
    found: dict[str, int] = {}
    for file in new_files(prefix):
        for item in inventory(file):
            if not isinstance(item, CodeObject):
                sys.exit(f"device.py: {item}")
            found[item.processor] = found.get(item.processor, 0) + 1
            if not belongs(item.processor, options.gfx, options.family):
                wanted = options.gfx or options.family
                sys.exit(f"device.py: {file} is for {item.processor}, not for {wanted}")
    if not found and options.gfx and not options.may_be_none:
        sys.exit(f"device.py: no code object for {options.gfx} in this package")
    counts = ", ".join(f"{count} for {name}" for name, count in sorted(found.items()))
    print(f"device.py: code objects: {counts or 'none'}")


if __name__ == "__main__":
    main()
