"""Python requirements as conda requirements."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet

from assembler.errors import BuildError
from assembler.sources.conda_names import conda_name

# The platform that packages are made for, whatever machine makes them.
LINUX_64 = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "platform_release": "",
    "platform_version": "",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}


def marker_environment(python: str) -> dict[str, str]:
    """Return what PEP 508 markers see on linux-64 with this Python (``3.11``)."""
    environment = {key: str(value) for key, value in default_environment().items()}
    return (
        environment
        | LINUX_64
        | {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "implementation_version": f"{python}.0",
            "extra": "",
        }
    )


def _constraint(specifier: Specifier) -> list[str]:
    operator, version = specifier.operator, specifier.version
    if operator == "~=":
        # conda has ~= too, but not every solver agrees on pre-releases there.
        release = version.split(".")
        return [f">={version}", f"{'.'.join(release[:-1])}.*"]
    if operator == "===":
        return [f"=={version}"]
    if operator == "==" and version.endswith(".*"):
        return [version]
    return [f"{operator}{version}"]


def conda_constraint(specifiers: SpecifierSet) -> str:
    """Return PEP 440 specifiers as one conda version constraint (empty when there are none)."""
    parts = [part for specifier in specifiers for part in _constraint(specifier)]
    return ",".join(sorted(parts))


def conda_requirement(requirement: Requirement) -> str:
    """Return one requirement as conda's ``name constraint``."""
    return f"{conda_name(requirement.name)} {conda_constraint(requirement.specifier)}".strip()


def conda_requirements(lines: Iterable[str], python: str, *, where: str) -> tuple[str, ...]:
    """Return the requirements that hold on linux-64 with this Python, sorted.

    Requirements of extras are not among them, unless another requirement names the extra: then the
    extra's own requirements are expected among the other packages of the lock.
    """
    environment = marker_environment(python)
    found: set[str] = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise BuildError(
                f"{where} requires {line!r}, which is not a valid requirement ({error})",
                remedy="correct it upstream or leave that version out",
            ) from None
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.add(conda_requirement(requirement))
    return tuple(sorted(found))
