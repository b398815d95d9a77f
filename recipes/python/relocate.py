"""Turn Debian's python3.X packages into a Python that runs at any prefix.

Debian builds CPython for /usr, with its own site-packages folders and with system libraries.
What changes here, and why:

* Every ELF file finds its libraries by ``$ORIGIN`` in ``lib/pythonX.Y/lib-vendored``, so that
  neither the host nor other packages can hand it different ones.
* ``site`` is frozen into Debian's binary and looks for dist-packages; a ``sitecustomize`` adds
  the usual site-packages, and sysconfig's default scheme becomes upstream's ``posix_prefix``.
* Modules that would need libraries outside this package (nis, _dbm), and CPython's own test
  modules, are left out.
* Build-time paths in sysconfig become the prefix.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LEFT_OUT_MODULES = {
    "_dbm": "needs libdb",
    "nis": "needs libnsl and libtirpc",
    "_ctypes_test": "CPython's own test",
    "_testbuffer": "CPython's own test",
    "_testcapi": "CPython's own test",
    "_testclinic": "CPython's own test",
    "_testimportmultiple": "CPython's own test",
    "_testinternalcapi": "CPython's own test",
    "_testmultiphase": "CPython's own test",
    "_xxtestfuzz": "CPython's own test",
    "xxlimited": "CPython's own example",
    "xxlimited_35": "CPython's own example",
}
LEFT_OUT_FILES = ("EXTERNALLY-MANAGED", "_distutils_system_mod.py", "sitecustomize.py", "test")
# Provided by every Linux C library; everything else must be in this package.
SYSTEM = re.compile(r"^(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libutil)\.so")

SITECUSTOMIZE = '''\
"""Adds site-packages: Debian's own ``site`` has them in virtual environments only."""

import os
import site
import sys

_FOLDER = os.path.join("lib", "python%d.%d" % sys.version_info[:2], "site-packages")


def getsitepackages(prefixes=None):
    """Return the site-packages folder of each prefix."""
    return [os.path.join(prefix, _FOLDER) for prefix in dict.fromkeys(prefixes or site.PREFIXES)]


site.getsitepackages = getsitepackages
if sys.prefix == sys.base_prefix:
    for _folder in getsitepackages():
        if os.path.isdir(_folder):
            site.addsitedir(_folder)
'''


def run(*command: str | Path) -> str:
    """Run a tool and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def unpack(packages: list[Path], root: Path) -> None:
    """Unpack Debian packages over each other."""
    for package in packages:
        run("dpkg-deb", "--extract", package, root)


def needed(path: Path) -> list[str]:
    """Return the libraries that an ELF file asks for."""
    return run("patchelf", "--print-needed", path).split()


def is_elf(path: Path) -> bool:
    """Say whether a file is an ELF file."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def copy_library(root: Path, soname: str, folder: Path) -> Path:
    """Copy the library with this SONAME under that name; stop when no package has it."""
    for place in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"):
        source = root / place / soname
        if source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / soname
            shutil.copyfile(source.resolve(), target)
            target.chmod(0o755)
            return target
    sys.exit(f"relocate.py: no package brings {soname}; add it to sources.toml")


def patch(path: Path, old: str, new: str, *, count: int) -> None:
    """Replace text that must occur exactly ``count`` times, so that a new upstream is noticed."""
    text = path.read_text(encoding="utf-8")
    if text.count(old) != count:
        sys.exit(f"relocate.py: {path.name} has {old!r} {text.count(old)} times, wanted {count}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def main() -> None:
    """Run the build script: ``relocate.py 3.11``."""
    version = sys.argv[1]
    prefix = Path(os.environ["PREFIX"])
    root = Path("root").absolute()
    unpack(sorted(Path().glob("*.deb")), root)

    binaries = prefix / "bin"
    binaries.mkdir(parents=True)
    executable = binaries / f"python{version}"
    shutil.copyfile(root / "usr" / "bin" / executable.name, executable)
    executable.chmod(0o755)
    for name in ("python3", "python"):
        (binaries / name).symlink_to(executable.name)

    library = prefix / "lib" / f"python{version}"
    shutil.copytree(root / "usr" / "lib" / library.name, library, symlinks=True)
    for name in LEFT_OUT_FILES:
        path = library / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    dynload = library / "lib-dynload"
    left_out = 0
    for module in LEFT_OUT_MODULES:
        for path in dynload.glob(f"{module}.cpython-*.so"):
            left_out += path.stat().st_size
            path.unlink()

    (library / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    (library / "site-packages").mkdir()
    (library / "site-packages" / "README.txt").write_text(
        "Packages installed into this environment.\n", encoding="utf-8"
    )
    patch(library / "sysconfig.py", "prefix_scheme = 'posix_local'",
          "prefix_scheme = 'posix_prefix'", count=1)  # fmt: skip
    for path in sorted(library.glob("_sysconfigdata__*.py")):
        if not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r"(?<=')/usr(?=[/' ])", str(prefix), text), encoding="utf-8")

    vendored = library / "lib-vendored"
    todo = [executable, *(path for path in sorted(dynload.iterdir()) if is_elf(path))]
    done: set[str] = set()
    while todo:
        path = todo.pop()
        for soname in needed(path):
            if not SYSTEM.match(soname) and soname not in done:
                done.add(soname)
                todo.append(copy_library(root, soname, vendored))
        origin = os.path.relpath(vendored, path.parent)
        run("patchelf", "--force-rpath", "--set-rpath", f"$ORIGIN/{origin}".rstrip("/."), path)

    licenses = Path("licenses")
    for copyright_file in sorted((root / "usr/share/doc").glob("*/copyright")):
        licenses.mkdir(exist_ok=True)
        shutil.copyfile(copyright_file, licenses / f"{copyright_file.parent.name}.txt")
    rule = {
        "rule": "modules",
        "files": len(LEFT_OUT_MODULES),
        "bytes": left_out,
        "reason": "need libraries of other packages, or are CPython's own tests",
    }
    print("left-out: " + json.dumps(rule))


if __name__ == "__main__":
    main()
