"""The machine's apt sources, and private ones for another Debian suite at the same mirrors."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assembler.errors import MissingToolError

SOURCES_VARIABLE = "ASSEMBLER_APT_SOURCES"

_ALIASES = ("stable", "oldstable", "oldoldstable", "testing", "unstable", "sid")
_CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke")
_SUITE = re.compile(
    rf"^(?P<name>{'|'.join((*_ALIASES, *_CODENAMES))})(?P<part>-updates|-security|/updates)?$"
)
_FIELD = re.compile(r"^(?P<key>[A-Za-z][A-Za-z0-9-]*):\s*(?P<value>.*)$")


@dataclass(frozen=True)
class AptSource:
    """One place packages come from, in deb822 terms; ``options`` are its other fields, verbatim."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = field(default=())

    def stanza(self) -> str:
        """Return it as a deb822 paragraph."""
        lines = [
            "Types: deb",
            f"URIs: {' '.join(self.uris)}",
            f"Suites: {' '.join(self.suites)}",
            *([f"Components: {' '.join(self.components)}"] if self.components else []),
            *(f"{key}: {value}" for key, value in self.options),
        ]
        return "\n".join(lines) + "\n"


def parse_deb822(text: str) -> tuple[AptSource, ...]:
    """Read a ``.sources`` file; disabled paragraphs and deb-src are left out.

    python-debian's Deb822 would do but for comments between a field's lines, which apt allows.
    """
    found = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        values: dict[str, tuple[str, str]] = {}
        current = ""
        for line in paragraph.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            match = _FIELD.match(line)
            if match and not line[0].isspace():
                current = match["key"].lower()
                values[current] = (match["key"], match["value"])
            elif current:
                key, value = values[current]
                values[current] = (key, f"{value}\n{line}")
        if "uris" not in values or values.get("enabled", ("", "yes"))[1].strip().lower() == "no":
            continue
        if "deb" not in values.get("types", ("", ""))[1].split():
            continue
        found.append(
            AptSource(
                uris=tuple(values["uris"][1].split()),
                suites=tuple(values.get("suites", ("", ""))[1].split()),
                components=tuple(values.get("components", ("", ""))[1].split()),
                options=tuple(
                    pair
                    for key, pair in values.items()
                    if key not in ("types", "uris", "suites", "components", "enabled")
                ),
            )
        )
    return tuple(found)


_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>\S.*)$")


def parse_one_line(text: str) -> tuple[AptSource, ...]:
    """Read a ``.list`` file (``deb [options] URI suite component…``)."""
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.partition("#")[0].strip())
        if not match:
            continue
        words = match["rest"].split()
        options = []
        for option in shlex.split(match["options"] or ""):
            key, _, value = option.partition("=")
            options.append((_deb822_key(key), value.replace(",", " ")))
        if len(words) > 1:
            found.append(AptSource((words[0],), (words[1],), tuple(words[2:]), tuple(options)))
    return tuple(found)


def _deb822_key(option: str) -> str:
    plural = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
    return plural.get(option, "-".join(part.capitalize() for part in option.split("-")))


def read_machine() -> tuple[AptSource, ...]:
    """Return what the machine's apt is configured with.

    ``ASSEMBLER_APT_SOURCES`` names a file (``.list`` or ``.sources``) to use instead, for machines
    whose own apt speaks of another distribution.
    """
    given = os.environ.get(SOURCES_VARIABLE)
    if given:
        return read_files([Path(given)])
    folder = Path("/etc/apt")
    parts = folder / "sources.list.d"
    return read_files([folder / "sources.list", *sorted(parts.glob("*"))])


def read_files(files: Iterable[Path]) -> tuple[AptSource, ...]:
    """Return the sources of these files; what cannot be read or is of another kind is passed by."""
    found: list[AptSource] = []
    for path in files:
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(path.suffix)
        try:
            text = path.read_text(encoding="utf-8", errors="replace") if parse else ""
        except OSError:
            continue
        if parse:
            found += parse(text)
    return tuple(found)


def for_suite(sources: Sequence[AptSource], suite: str) -> tuple[AptSource, ...]:
    """Return the Debian sources among ``sources``, turned to ``suite`` and its main component.

    ``bookworm bookworm-updates`` becomes ``trixie trixie-updates``; a source of several Debian
    suites gives each wanted one once. MissingToolError when no source is Debian's.
    """
    found: dict[str, AptSource] = {}
    for source in sources:
        parts = [match["part"] or "" for name in source.suites if (match := _SUITE.match(name))]
        wanted = dict.fromkeys(
            suite + ("-security" if part == "/updates" else part) for part in parts
        )
        if not wanted or "main" not in source.components:
            continue
        options = tuple(
            pair for pair in source.options if pair[0].lower() not in ("architectures", "targets")
        )
        turned = AptSource(source.uris, tuple(wanted), ("main",), options)
        found.setdefault(turned.stanza(), turned)
    if not found:
        raise MissingToolError(
            "this machine's apt has no Debian sources",
            remedy="run it on Debian (a container will do), or name a sources file in "
            f"{SOURCES_VARIABLE}",
        )
    return tuple(found.values())
