"""The PyPI dependencies of a profile, resolved once into a list of hashes.

``recipes/wheels/<profile>.in`` names what people decided; the resolver's answer, with everything
that follows from it and from the recipes' own wheels, becomes ``recipes/wheels/<profile>.toml``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from assembler.errors import ConfigError, SourceUnavailableError
from assembler.sources.conda_names import conda_name, normal
from assembler.sources.pins import Wheel
from assembler.sources.pypi import Found, Target, resolve

KEYS = ("conda_name", "name", "version", "file", "sha256", "size")


def read_requirements(path: Path) -> tuple[str, ...]:
    """Return the requirement lines of a ``.in`` file without comments; ConfigError if faulty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", remedy="write what the profile needs") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            found.append(str(Requirement(words)))
        except InvalidRequirement as error:
            raise ConfigError(
                f"{path}: line {number}: {str(error).splitlines()[0]}", remedy="correct it"
            ) from None
    return tuple(found)


def marker_environment(target: Target) -> dict[str, str]:
    """Return what environment markers are judged by on the target, whatever runs this."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.0",
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{target.python}.0",
        "python_version": target.python,
        "sys_platform": "linux",
    }


def reached(
    roots: Iterable[str], found: Mapping[str, Found], environment: Mapping[str, str]
) -> tuple[dict[str, Found], dict[str, str]]:
    """Follow Requires-Dist from the roots as the target would see it.

    Returns what is reached by normalised name, and the requirements that nothing found satisfies:
    pip judges markers by the python it runs on, so both may differ from its answer.
    """
    taken: dict[str, Found] = {}
    unmet: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [Requirement(root) for root in roots]
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        if name not in found:
            unmet[name] = f"{requirement.name}{requirement.specifier}"
            continue
        taken[name] = found[name]
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in found[name].requires:
                one = Requirement(line)
                where = {**environment, "extra": extra}
                if one.marker is None or one.marker.evaluate(where):
                    todo.append(one)
    return taken, unmet


def solve(
    requirements: Sequence[str],
    own: Sequence[str],
    target: Target,
    *,
    folders: Sequence[Path] = (),
    keep: Sequence[str] = (),
) -> tuple[Found, ...]:
    """Resolve the requirements together with the recipes' own wheels, and return the others.

    ``own`` pins the latter (``torch==2.13.0+cpu``), ``folders`` hold their files, ``keep`` are
    versions that must not move. SourceUnavailableError when there is no answer.
    """
    asked = [*requirements, *own]
    for _ in range(8):
        answer = resolve(asked, target, dependencies=True, constraints=keep, find_links=folders)
        if answer.unreachable:
            raise SourceUnavailableError(
                "pip could not reach its package index", remedy="check the network and the proxy"
            )
        found = {normal(one.name): one for one in answer.found}
        taken, unmet = reached([*requirements, *own], found, marker_environment(target))
        if not unmet:
            ours = {normal(Requirement(line).name) for line in own}
            return tuple(taken[name] for name in sorted(taken) if name not in ours)
        asked += unmet.values()
    raise SourceUnavailableError(
        f"no closed set of wheels was found (still open: {', '.join(unmet)})",
        remedy="name these in the .in file with a version that has wheels",
    )


def refuse(found: Iterable[Found], names: Collection[str], prefixes: tuple[str, ...]) -> None:
    """Raise when the answer holds what must never come this way, such as another build of torch."""
    for one in found:
        name = normal(one.name)
        if name in names or name.startswith(prefixes):
            raise ConfigError(
                f"the resolver chose {one.name} {one.version}, which does not belong in this list",
                remedy="find out what asks for it and leave that out of the .in file",
            )


def render(wheels: Iterable[Wheel], profile: str) -> str:
    """Return the list as TOML, sorted by conda name."""
    command = f"assembler pin --wheels --profile {profile}"
    parts = [f"# Written by `{command}` from {profile}.in; do not edit.\n"]
    for wheel in sorted(wheels, key=lambda one: one.conda_name):
        values = [f"{key} = {json.dumps(getattr(wheel, key))}\n" for key in KEYS]
        parts.append(f"\n[[wheel]]\n{''.join(values)}")
    return "".join(parts)


def wheel_of(found: Found, file: str, sha256: str, size: int) -> Wheel:
    """Return the list's entry for a file."""
    return Wheel(
        conda_name=conda_name(found.name),
        name=normal(found.name),
        version=found.version,
        file=file,
        sha256=sha256,
        size=size,
    )
