"""Where a package's files go in the prefix, and what an install adds to them. Pure.

The rules are those of py-rattler's install: ``site-packages/`` of a noarch python package goes into
the python's own site-packages, ``python-scripts/`` into bin, entry points become scripts in bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from assembler.bytecode.python import PythonInfo
from assembler.errors import ImageError
from assembler.image.condafile import EntryPoint, PackageInfo, PathEntry
from assembler.image.relocate import script_shebang

META = "conda-meta"
SITE = "site-packages/"
SCRIPTS = "python-scripts/"


@dataclass(frozen=True)
class Placement:
    """A package's files by their path in the package, and their place in the prefix."""

    info: PackageInfo
    python: PythonInfo | None
    places: Mapping[str, tuple[str, PathEntry]]
    scripts: Mapping[str, EntryPoint]

    @property
    def record(self) -> str:
        """The place of the package's record in conda-meta."""
        index = self.info.index
        return f"{META}/{index['name']}-{index['version']}-{index['build']}.json"

    @cached_property
    def sources(self) -> frozenset[str]:
        """The modules that get bytecode."""
        if self.python is None:
            return frozenset()
        return frozenset(
            place
            for place, entry in self.places.values()
            if self.python.compiles(place, entry.path_type)
        )

    @property
    def uses_python(self) -> bool:
        """Whether the result depends on which python the prefix has."""
        return self.info.is_noarch_python or bool(self.sources)

    def installed(self) -> list[str]:
        """Return every path that the package brings, without bytecode; may be unsorted."""
        return [place for place, _ in self.places.values()] + [*self.scripts, self.record]


def place(info: PackageInfo, python: PythonInfo | None) -> Placement:
    """Return a package's placement; ImageError when it needs a python that is not there."""
    if info.is_noarch_python and python is None:
        raise ImageError(
            f"{info.file} is a noarch python package, but the lock has no python",
            remedy="add python to what is locked",
        )
    places: dict[str, tuple[str, PathEntry]] = {}
    for entry in info.paths:
        path = entry.path
        if info.is_noarch_python and python is not None:
            if path.startswith(SITE):
                path = f"{python.site_packages}/{path.removeprefix(SITE)}"
            elif path.startswith(SCRIPTS):
                path = f"bin/{path.removeprefix(SCRIPTS)}"
        if entry.path in places:
            raise ImageError(
                f"{info.file} lists {entry.path} twice", remedy="build that package again"
            )
        places[entry.path] = (path, entry)
    scripts = {f"bin/{point.command}": point for point in info.entry_points}
    return Placement(info, python, places, scripts)


def entry_point_script(point: EntryPoint, prefix: str, python: PythonInfo) -> bytes:
    """Return the script that calls an entry point, as py-rattler writes it."""
    first = script_shebang(f"{prefix}/{python.executable}")
    name = point.function.partition(".")[0]
    return (
        f"{first}\n"
        "# -*- coding: utf-8 -*-\n"
        "import re\n"
        "import sys\n\n"
        f"from {point.module} import {name}\n\n"
        "if __name__ == '__main__':\n"
        "\tsys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])\n"
        f"\tsys.exit({point.function}())\n"
    ).encode()


def check_conflicts(placements: Sequence[Placement]) -> None:
    """Raise ImageError when two packages bring one path, or one a path below another's symlink.

    Engines refuse or misread both; which package would win in an install depends on its order.
    """
    owner: dict[str, str] = {}
    links: dict[str, str] = {}
    for placement in placements:
        for path, entry in placement.places.values():
            if entry.path_type == "softlink":
                links[path] = placement.info.file
    for placement in placements:
        file = placement.info.file
        for path in placement.installed():
            if path in owner:
                raise ImageError(
                    f"{owner[path]} and {file} both bring {path}",
                    remedy="let one recipe leave the file out, or drop one of the packages",
                )
            owner[path] = file
            start = path.rfind("/")
            while start > 0:
                if path[:start] in links:
                    raise ImageError(
                        f"{file} brings {path}, but {path[:start]} is a symbolic link of "
                        f"{links[path[:start]]}",
                        remedy="let the recipe install to the link's target",
                    )
                start = path.rfind("/", 0, start)
