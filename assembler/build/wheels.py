"""A recipe for every wheel: PyPI dependencies become conda packages without a file of their own.

The recipe is derived from the wheel's metadata and runs the same build script as the recipes that
are written by hand (recipes/_scripts/wheel.py). It is written to build/recipes/<profile>/<name>/,
where people can read it and where plain rattler-build can build it too.
"""

from __future__ import annotations

import configparser
import fnmatch
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from assembler.build.licenses import spdx_expression
from assembler.build.requirements import conda_constraint, conda_requirements
from assembler.errors import BuildError

MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_x86_64|manylinux(1|2010|2014)_x86_64")
LEGACY_GLIBC = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}


@dataclass(frozen=True)
class WheelMetadata:
    """What a wheel says about itself."""

    distribution: str
    version: str
    summary: str
    homepage: str
    license: str
    requires_python: str
    requires: tuple[str, ...]
    console_scripts: tuple[str, ...]
    pure: bool
    glibc: str | None
    has_licenses: bool
    files: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> WheelMetadata:
        """Read a wheel's dist-info; BuildError when it is not a wheel."""
        try:
            _name, _version, _build, tags = parse_wheel_filename(path.name)
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                info = next(name for name in names if name.endswith(".dist-info/METADATA"))
                folder = info.rpartition("/")[0]
                metadata = Parser().parsestr(archive.read(info).decode("utf-8", "replace"))
                wheel = Parser().parsestr(archive.read(f"{folder}/WHEEL").decode())
                scripts: tuple[str, ...] = ()
                if f"{folder}/entry_points.txt" in names:
                    text = archive.read(f"{folder}/entry_points.txt").decode()
                    scripts = console_scripts(text)
        except (ValueError, KeyError, StopIteration, zipfile.BadZipFile) as error:
            raise BuildError(
                f"{path.name} is not a wheel ({error})", remedy="fetch it again with --verify"
            ) from None
        return cls(
            distribution=str(metadata["Name"]),
            version=str(metadata["Version"]),
            summary=str(metadata["Summary"] or metadata["Name"]),
            homepage=_homepage(metadata),
            license=_license(metadata),
            requires_python=str(metadata["Requires-Python"] or ""),
            requires=tuple(metadata.get_all("Requires-Dist", ())),
            console_scripts=scripts,
            pure=str(wheel["Root-Is-Purelib"]).lower() == "true",
            glibc=oldest_glibc(tags),
            has_licenses=any(
                name.startswith(folder) and re.search(r"LICEN[CS]E|COPYING|NOTICE", name, re.I)
                for name in names
            ),
            files=tuple(names),
        )


def matching_rules(
    rules: Iterable[Mapping[str, Any]], conda_name: str, files: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the rules of recipes/wheels/parts.toml that concern a wheel, without ``not_for``.

    A wheel's input key covers these alone, so that a new rule rebuilds only what it changes.
    """
    found: list[dict[str, Any]] = []
    for rule in rules:
        pattern = re.compile("|".join(fnmatch.translate(path) for path in rule["paths"]))
        if conda_name not in rule.get("not_for", ()) and any(map(pattern.match, files)):
            found.append({key: rule[key] for key in ("name", "reason", "paths")})
    return found


def console_scripts(text: str) -> tuple[str, ...]:
    """Return ``name = module:function`` for each console script of an entry_points.txt."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    if not parser.has_section("console_scripts"):
        return ()
    return tuple(
        f"{name} = {target.partition('[')[0].strip()}"
        for name, target in sorted(parser.items("console_scripts"))
    )


def oldest_glibc(tags: frozenset[Tag]) -> str | None:
    """Return the oldest C library that a wheel's platform tags promise to run on."""
    found: list[tuple[int, int]] = []
    for tag in tags:
        if match := MANYLINUX.fullmatch(tag.platform):
            major, minor, legacy = match.groups()
            found.append(LEGACY_GLIBC[legacy] if legacy else (int(major), int(minor)))
    return ".".join(map(str, min(found))) if found else None


def _homepage(metadata: Message) -> str:
    urls = [str(metadata["Home-page"] or "")]
    urls += [str(entry).partition(",")[2].strip() for entry in metadata.get_all("Project-URL", ())]
    return next((url for url in urls if url.startswith(("https://", "http://"))), "")


def _license(metadata: Message) -> str:
    """Return the license as an SPDX expression: what the metadata says first that is one."""
    classifiers = [
        str(entry).rpartition("::")[2].strip()
        for entry in metadata.get_all("Classifier", ())
        if str(entry).startswith("License ::")
    ]
    return spdx_expression(
        str(metadata["License-Expression"] or ""), str(metadata["License"] or ""), *classifiers
    )


def wheel_recipe(
    wheel: WheelMetadata, conda_name: str, python: str, source: str, script: str
) -> dict[str, Any]:
    """Return the recipe (schema v1) of a dependency wheel.

    ``source`` and ``script`` are paths of the fetched file's folder and of wheel.py, relative to
    the recipe.
    """
    tag = python.replace(".", "")
    run = list(conda_requirements(wheel.requires, python, where=wheel.distribution))
    command = f'python "$RECIPE_DIR/{script}" --python {python}'
    build: dict[str, Any] = {"number": 0}
    if wheel.pure:
        build |= {"noarch": "python", "script": [f"{command} --noarch"]}
        if wheel.console_scripts:
            build["python"] = {"entry_points": list(wheel.console_scripts)}
        try:
            constraint = conda_constraint(SpecifierSet(wheel.requires_python))
        except InvalidSpecifier:
            constraint = ""
        run.append(f"python {constraint}".strip())
    else:
        build |= {
            "string": f"py{tag}_h${{{{ hash }}}}_0",
            "script": [command],
            "python": {"skip_pyc_compilation": ["**/*.py"]},
            "dynamic_linking": {
                "binary_relocation": False,
                "overlinking_behavior": "ignore",
                "missing_dso_allowlist": ["*"],
            },
            "prefix_detection": {"ignore_binary_files": True},
        }
        run += [f"python {python}.*", f"python_abi {python}.* *_cp{tag}"]
    if wheel.glibc:
        run.append(f"__glibc >={wheel.glibc}")
    about: dict[str, Any] = {"license": wheel.license, "summary": wheel.summary}
    if wheel.homepage:
        about["homepage"] = wheel.homepage
    if wheel.has_licenses:
        about["license_file"] = "licenses/"
    return {
        "package": {"name": conda_name, "version": wheel.version},
        "source": {"path": source},
        "build": build,
        "requirements": {"run": sorted(run)},
        "about": about,
    }
