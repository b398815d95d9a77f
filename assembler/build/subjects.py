"""Which packages have tests to run, and which of them this machine can install at all."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from rattler import Version, VersionSpec, VirtualPackage

from assembler.build.recipes import load_yaml
from assembler.channel.index import read_records
from assembler.channel.records import ASSEMBLER_MEMBER, Record, read_info
from assembler.errors import BuildError, ConfigError
from assembler.stack import Profile
from assembler.workspace import Workspace

TESTS_MEMBER = "info/tests/tests.yaml"


@dataclass(frozen=True)
class Subject:
    """A package of the channel with the names of the tests that it carries.

    ``lacks`` says what the machine must have, and has not, for the package to be installed.
    """

    record: Record
    tests: tuple[str, ...]
    lacks: str = ""

    @property
    def label(self) -> str:
        """How messages call the package."""
        return f"{self.record.name} {self.record.version} {self.record.build}"


def subjects(
    workspace: Workspace, profile: Profile, *, only: Collection[str] = ()
) -> tuple[Subject, ...]:
    """Return the profile's packages in the channel, or those that are named, with their tests.

    Names may be patterns; those with a ``/`` are paths in the channel. ConfigError when one names
    nothing, BuildError when the channel has no package of the profile.
    """
    records = read_records(workspace.channel)
    own: list[tuple[Record, tuple[str, ...]]] = []
    for record in records:
        info = read_info(workspace.channel / record.path, ASSEMBLER_MEMBER, TESTS_MEMBER)
        stamp = json.loads(info.get(ASSEMBLER_MEMBER, b"{}"))
        if stamp.get("inputs", {}).get("profile") == profile.name:
            own.append((record, _tests(info.get(TESTS_MEMBER, b"[]"))))
    if not own:
        raise BuildError(
            f"{workspace.channel} has no package of profile {profile.name}",
            remedy="run `assembler build` first",
        )
    names = sorted({record.name for record, _tests in own})
    for pattern in only:
        if not any(_fits(record, pattern) for record, _tests in own):
            near = get_close_matches(pattern, names, n=1)
            raise ConfigError(
                f"no package of the profile in the channel is called {pattern!r}",
                remedy=f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}",
            )
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    here = virtual_packages()
    return tuple(
        Subject(record, tests, lacks(record, by_name, here) if tests else "")
        for record, tests in own
        if not only or any(_fits(record, pattern) for pattern in only)
    )


def _fits(record: Record, pattern: str) -> bool:
    return fnmatchcase(record.path if "/" in pattern else record.name, pattern)


def _tests(data: bytes) -> tuple[str, ...]:
    """Return the kind of each test in a package's tests.yaml."""
    return tuple(
        next((key for key in test if key != "requirements"), "test")
        for test in load_yaml(data.decode("utf-8")) or ()
    )


def virtual_packages() -> dict[str, str]:
    """Return name -> version of what this machine is to a solver (``__glibc`` -> ``2.36``)."""
    found = (one.into_generic() for one in VirtualPackage.detect())
    return {one.name.normalized: str(one.version) for one in found}


def lacks(record: Record, by_name: Mapping[str, list[Record]], here: Mapping[str, str]) -> str:
    """Say which virtual package a package or one that it needs wants and the machine has not.

    A dependency counts when no package of its name in the channel can be installed here; what is
    in other channels is the solver's to judge.
    """
    return _lacks(record, by_name, here, {})


def _lacks(
    record: Record,
    by_name: Mapping[str, list[Record]],
    here: Mapping[str, str],
    known: dict[str, str],
) -> str:
    if record.path not in known:
        known[record.path] = ""  # while it is looked at: packages may need each other
        known[record.path] = _missing(record, by_name, here, known)
    return known[record.path]


def _missing(
    record: Record,
    by_name: Mapping[str, list[Record]],
    here: Mapping[str, str],
    known: dict[str, str],
) -> str:
    for spec in record.depends:
        name, _, wanted = spec.partition(" ")
        if name.startswith("__"):
            version = here.get(name)
            if version is None or not _satisfies(version, wanted.split(" ")[0]):
                return f"{record.name} needs {spec}, this machine has {version or 'none'}"
        words = [_lacks(one, by_name, here, known) for one in by_name.get(name, ())]
        if words and all(words):
            return words[0]
    return ""


def _satisfies(version: str, wanted: str) -> bool:
    return not wanted or VersionSpec(wanted).matches(Version(version))
