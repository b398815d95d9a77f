"""Install the one wheel in the working folder into ``$PREFIX``: every recipe's build script.

    python wheel.py --python 3.11                       everything but parts and what is left out
    python wheel.py --python 3.11 --part headers        only the files of that part
    python wheel.py --python 3.11 --part device --gfx … only that target's files of a device part,
                                                        or those that the members of a family share
    python wheel.py --python 3.12 --wheel 'dist/*.whl'  another wheel than ``*.whl``

A recipe's ``parts.toml`` names the files that go to a package of their own (``[[part]]``) and those
that no package needs (``[[leave_out]]``), each with its reason. Files go in byte for byte; RECORD
lists what was installed, INSTALLER says conda, and console scripts get a plain shebang.
What was left out is printed as one JSON line a rule, ``left-out: {…}``, and what a device part
holds as one line a target, ``part: {…}``; the builder keeps both.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import os
import re
import shutil
import struct
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.records import RecordEntry
from installer.sources import WheelContentElement, WheelFile
from installer.utils import Scheme

from assembler.errors import ConfigError
from assembler.targets import family_of, owner_of, spelled_targets
from assembler.verify.gfx.flags import decode_flags

ELF_HEADER = 64  # bytes
AMDGPU = 224  # e_machine
NAMED = r"gfx[0-9a-z]+"  # greedy: names of databases go on with the number of compute units
LICENSE = re.compile(r"(^|/)(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*$|/licenses/", re.IGNORECASE)
SCRIPT = """#!{interpreter}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {name}

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit({call}())
"""


@dataclass(frozen=True)
class Rule:
    """Which files belong to a part, or to no package at all.

    ``paths`` are shell patterns over the wheel's file names, where ``*`` also crosses folders and
    ``{gfx}`` stands for a target. ``code_object_folders`` are patterns of folders whose target is
    not in their name: the code objects inside tell it.
    """

    name: str
    reason: str
    paths: tuple[str, ...]
    code_object_folders: tuple[str, ...] = ()

    @cached_property
    def expressions(self) -> tuple[re.Pattern[str], ...]:
        """The patterns as regular expressions; a group ``gfx`` stands for the target's name."""
        return tuple(
            re.compile(f"(?P<gfx>{NAMED})".join(_translated(part) for part in path.split("{gfx}")))
            for path in self.paths
        )

    def targets(self, path: str, folders: dict[str, str]) -> tuple[str, ...] | None:
        """Return the targets that a file of this rule is for; None for a file that is not here.

        Files of rules without targets are for none. A file named after a family of targets is for
        each of its members; it belongs to the family.
        """
        for expression in self.expressions:
            if match := expression.fullmatch(path):
                return spelled_targets(match["gfx"]) if "gfx" in expression.groupindex else ()
        folder = str(PurePosixPath(path).parent)
        if folder in folders and any(fnmatchcase(folder, one) for one in self.code_object_folders):
            return (folders[folder],)
        return None


def _translated(pattern: str) -> str:
    """Return a shell pattern's regular expression without the anchor at its end."""
    return fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")


@dataclass
class Selection:
    """Decides file by file, and counts what is left out."""

    parts: tuple[Rule, ...]
    leave_out: tuple[Rule, ...]
    part: Rule | None
    gfx: str | None
    folders: dict[str, str]
    alone: bool = False
    dropped: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    parted: dict[tuple[str, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def wants(self, path: str, size: int) -> bool:
        """Say whether the package being built holds ``path``."""
        if self.part is not None:
            targets = self.part.targets(path, self.folders)
            return targets is not None and (
                self.gfx is None or self.gfx == self.owner(path, targets)
            )
        for part in self.parts:
            targets = part.targets(path, self.folders)
            if targets is not None:
                if owner := self.owner(path, targets):
                    self.parted[part.name, owner][0] += 1
                    self.parted[part.name, owner][1] += size
                return False
        for rule in self.leave_out:
            if rule.targets(path, self.folders) is not None:
                self.dropped[rule.name][0] += 1
                self.dropped[rule.name][1] += size
                return False
        return True

    def owner(self, path: str, targets: tuple[str, ...]) -> str:
        """Return the target or family whose package holds a file, or nothing.

        Ends the build when the package being built would need a family's package, and has none.
        """
        try:
            owner = owner_of(targets)
        except ConfigError as error:
            sys.exit(f"wheel.py: {path}: {error}")
        if self.alone and self.gfx is not None and owner == family_of(self.gfx):
            sys.exit(f"wheel.py: {path} is for all of {owner}, which has no package of its own")
        return owner


class Destination(SchemeDictionaryDestination):
    """Writes into the prefix under construction.

    Scripts stand in RECORD without hash and size: installers rewrite their first line.
    """

    noarch = False

    def write_script(self, name: str, module: str, attr: str, section: str) -> RecordEntry:
        """Write an entry point with a plain shebang; a noarch package leaves it to installers."""
        if not self.noarch:
            text = SCRIPT.format(
                interpreter=self.interpreter, module=module, name=attr.split(".")[0], call=attr
            )
            self.write_to_fs(Scheme("scripts"), name, io.BytesIO(text.encode()), True)
        return RecordEntry(name, None, None)

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        """Write one file of the wheel."""
        entry = super().write_file(scheme, path, stream, is_executable)
        return RecordEntry(entry.path, None, None) if scheme == "scripts" else entry


class SelectedWheel(WheelFile):
    """A wheel of which only the selected files exist."""

    selection: Selection

    def get_contents(self) -> Iterable[WheelContentElement]:  # type: ignore[override]
        """Yield the selected files with their RECORD entries."""
        for record, stream, executable in super().get_contents():
            path, _hash, size = record
            if self.selection.wants(path, int(size or 0)):
                yield record, stream, executable


def read_rules(path: Path) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Read parts.toml; both lists are empty when there is none."""
    if not path.is_file():
        return (), ()
    data = tomllib.loads(path.read_text(encoding="utf-8"))

    def rules(key: str) -> tuple[Rule, ...]:
        return tuple(
            Rule(
                name=entry["name"],
                reason=entry["reason"],
                paths=tuple(entry.get("paths", ())),
                code_object_folders=tuple(entry.get("code_object_folders", ())),
            )
            for entry in data.get(key, ())
        )

    return rules("part"), rules("leave_out")


def target_of(header: bytes) -> str | None:
    """Return the target of an AMDGPU code object, given its ELF header; None for other files."""
    if len(header) < ELF_HEADER or header[:4] != b"\x7fELF":
        return None
    (machine,) = struct.unpack_from("<H", header, 18)
    (flags,) = struct.unpack_from("<I", header, 48)
    return decode_flags(flags, None).processor if machine == AMDGPU else None


def folder_targets(wheel: WheelFile, rules: Iterable[Rule]) -> dict[str, str]:
    """Return folder -> target for the folders whose code objects tell it."""
    patterns = [pattern for rule in rules for pattern in rule.code_object_folders]
    found: dict[str, str] = {}
    archive = wheel._zipfile
    for name in archive.namelist() if patterns else ():
        folder = str(PurePosixPath(name).parent)
        if folder not in found and any(fnmatchcase(folder, pattern) for pattern in patterns):
            with archive.open(name) as stream:
                target = target_of(stream.read(ELF_HEADER))
            if target:
                found[folder] = target
    return found


def copy_licenses(wheel: WheelFile, folder: Path) -> None:
    """Lay the wheel's license files out for the recipe's ``license_file: licenses/``."""
    archive = wheel._zipfile
    for name in archive.namelist():
        if ".dist-info/" in name and LICENSE.search(name) and not name.endswith("/"):
            target = folder / name.split(".dist-info/", 1)[1].removeprefix("licenses/")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)


def the_wheel(folder: Path, pattern: str) -> Path:
    """Return the only wheel of the working folder that the pattern fits."""
    wheels = sorted(folder.glob(pattern))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        sys.exit(f"wheel.py: wanted exactly one wheel {pattern}, found {names}")
    return wheels[0]


def copy_part(wheel: SelectedWheel, site_packages: Path) -> None:
    """Write a part's files; a part has no dist-info and no scripts of its own."""
    for (path, _hash, _size), stream, executable in wheel.get_contents():
        if ".dist-info/" in path or ".data/" in path:
            continue
        target = site_packages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as sink:
            shutil.copyfileobj(stream, sink)
        if executable:
            target.chmod(0o755)


def main() -> None:
    """Run the build script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="minor version, e.g. 3.11")
    parser.add_argument("--part", help="name of a [[part]] of parts.toml")
    parser.add_argument("--gfx", help="target or family of a device part")
    parser.add_argument("--alone", action="store_true", help="the target's family has no package")
    parser.add_argument("--noarch", action="store_true", help="the package is noarch: python")
    parser.add_argument("--wheel", default="*.whl", help="pattern of the wheel's file name")
    options = parser.parse_args()
    prefix = Path(os.environ["PREFIX"])
    library = prefix / "lib" / f"python{options.python}"
    site_packages = library / "site-packages"
    parts, leave_out = read_rules(Path(os.environ["RECIPE_DIR"]) / "parts.toml")
    chosen = next((part for part in parts if part.name == options.part), None)
    if options.part and chosen is None:
        sys.exit(f"wheel.py: parts.toml has no part {options.part!r}")

    with WheelFile.open(the_wheel(Path.cwd(), options.wheel)) as opened:
        wheel = SelectedWheel(opened._zipfile)
        selection = Selection(
            parts,
            leave_out,
            chosen,
            options.gfx,
            folder_targets(wheel, (*parts, *leave_out)),
            options.alone,
        )
        wheel.selection = selection
        copy_licenses(wheel, Path.cwd() / "licenses")
        if chosen is not None:
            copy_part(wheel, site_packages)
        else:
            destination = Destination(
                {
                    "purelib": str(site_packages),
                    "platlib": str(site_packages),
                    "headers": str(
                        prefix / "include" / f"python{options.python}" / wheel.distribution
                    ),
                    "scripts": str(prefix / "bin"),
                    "data": str(prefix),
                },
                interpreter=str(prefix / "bin" / "python"),
                script_kind="posix",
            )
            destination.noarch = options.noarch
            install(wheel, destination, additional_metadata={"INSTALLER": b"conda\n"})
    reasons = {rule.name: rule.reason for rule in leave_out}
    for name, (files, size) in sorted(selection.dropped.items()):
        entry = {"rule": name, "files": files, "bytes": size, "reason": reasons[name]}
        print("left-out: " + json.dumps(entry, sort_keys=True))
    for (name, target), (files, size) in sorted(selection.parted.items()):
        entry = {"part": name, "target": target, "files": files, "bytes": size}
        print("part: " + json.dumps(entry, sort_keys=True))


if __name__ == "__main__":
    main()
