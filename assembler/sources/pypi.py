"""The user's own pip: where its indexes have a file, and its way of getting one.

pip is asked instead of the index, so that the user's index, extra indexes, find-links, proxy,
certificate, netrc and keyring settings hold. Constraints are put out of force (they speak of the
user's environments, not of pins), and tags are those of the profile's python, whatever runs this.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.errors import ConfigError, SourceUnavailableError
from assembler.sources.conda_names import normal

_PLACES = ("index-url", "extra-index-url", "find-links", "no-index")
_SECTIONS = ("global", "install", "download", ":env:")
_NOT_FOUND = re.compile(
    r"(?:No matching distribution found for|Could not install requirement) ([A-Za-z0-9._-]+)"
)
_NETWORK = re.compile(
    r"Retrying \(Retry|NewConnectionError|ConnectTimeout|ProxyError|SSLError|CERTIFICATE_VERIFY|"
    r"Could not fetch URL|HTTP error (401|403|407|5\d\d)|(401|403|407|5\d\d) (Client|Server) Error|"
    r"Max retries exceeded|ConnectionError|Connection error"
)
# What only pip's log tells: a place that failed is passed by in silence when there are no retries.
_UNREACHED = re.compile(
    r"Could not fetch URL .*("
    r"connection error|problem confirming the ssl|50\d (Server )?Error|40[137] Client Error|"
    r"Max retries exceeded|too many \d+ error responses)"
)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")
_MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True)
class Target:
    """The python that wheels must run on: version such as ``3.11``, machine, newest glibc."""

    python: str
    machine: str
    glibc: tuple[int, int]

    @classmethod
    def of(cls, *, python: str, platform: str, glibc: str) -> Target:
        """Return the target of a profile's python, conda platform and ``__glibc`` version."""
        if platform not in _MACHINES:
            raise ConfigError(
                f"there are no wheels for platform {platform!r}",
                remedy=f"use one of {', '.join(_MACHINES)}",
            )
        major, _, minor = glibc.partition(".")
        return cls(python, _MACHINES[platform], (int(major), int(minor)))

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags from the newest glibc down; pip itself only widens the old names."""
        # 2.17 is the first glibc of manylinux2014, the oldest tag that aarch64 has.
        oldest = 5 if self.machine == "x86_64" else 17
        modern = [
            f"manylinux_{self.glibc[0]}_{minor}_{self.machine}"
            for minor in range(self.glibc[1], oldest - 1, -1)
        ]
        old = ["manylinux2014"] + (["manylinux2010", "manylinux1"] if oldest == 5 else [])
        return (*modern, *(f"{name}_{self.machine}" for name in old), f"linux_{self.machine}")

    def options(self, folder: Path) -> list[str]:
        """Return pip's options that select wheels for this target; ``folder`` stays unused.

        pip before 23.1 takes them only together with ``--target``, even in a dry run.
        """
        chosen = ["--only-binary", ":all:", "--implementation", "cp"]
        chosen += ["--python-version", self.python, "--target", str(folder), "--no-user"]
        for platform in self.platforms:
            chosen += ["--platform", platform]
        return chosen


@dataclass(frozen=True)
class Found:
    """What pip would install: name and version as the wheel says, URL, hash when the index tells.

    ``requires`` are the wheel's Requires-Dist lines.
    """

    name: str
    version: str
    url: str
    sha256: str | None
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """What pip found, which requirements it found nowhere, and whether an index failed."""

    found: tuple[Found, ...]
    missing: tuple[str, ...]
    unreachable: bool


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment |= {
        "PIP_CONSTRAINT": os.devnull,
        "PIP_BUILD_CONSTRAINT": os.devnull,
        "PIP_REQUIRE_HASHES": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
        # Wheels go by the profile's python; a requirement file in the user's settings must not add.
        "PIP_REQUIREMENT": "",
    }
    return environment


def _run(arguments: Sequence[str], *, alone: bool = False) -> subprocess.CompletedProcess[str]:
    """Run pip; ``alone`` puts every other place than the one on the command line out of force."""
    places = _without_places(settings()) if alone else {}
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env=_environment() | places,
        text=True,
        encoding="utf-8",
        errors="replace",
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _without_places(values: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the user's settings (proxy, certificates) but none of their places.

    A configured extra index cannot be taken back on the command line, so no file is read at all.
    """
    variables = {
        f"PIP_{key.upper().replace('-', '_')}": " ".join(value.split())
        for key, value in values.items()
        if key not in _PLACES
    }
    gone = {f"PIP_{key.upper().replace('-', '_')}": "" for key in _PLACES}
    return variables | gone | {"PIP_NO_INDEX": "0", "PIP_CONFIG_FILE": os.devnull}


def _check_pip(result: subprocess.CompletedProcess[str]) -> None:
    if "No module named pip" in result.stderr:
        raise SourceUnavailableError(
            f"{sys.executable} has no pip", remedy=f"run `{sys.executable} -m ensurepip`"
        )


def settings() -> dict[str, str]:
    """Return pip's effective configuration by key without section (``proxy``, ``cert``, …)."""
    result = _run(["config", "list"])
    _check_pip(result)
    by_section: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in result.stdout.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in by_section:
            try:
                by_section[section][key] = str(ast.literal_eval(value))
            except (SyntaxError, ValueError):
                continue
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= by_section[section]
    return merged


def last_words(stderr: str) -> str:
    """Return pip's last error line without credentials."""
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")] or [
        line for line in stderr.splitlines() if line.strip()
    ]
    words = lines[-1].removeprefix("ERROR:").strip() if lines else "it said nothing"
    return _USER_INFO.sub("", words)


def _unreached(log: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(_UNREACHED.search(log.read_text(encoding="utf-8", errors="replace")))
    return False


def _read_report(path: Path) -> tuple[Found, ...]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = []
    for item in report["install"]:
        info, metadata = item["download_info"], item["metadata"]
        hashes = info.get("archive_info", {}).get("hashes", {})
        found.append(
            Found(
                name=metadata["name"],
                version=metadata["version"],
                url=info["url"],
                sha256=hashes.get("sha256"),
                requires=tuple(metadata.get("requires_dist", ())),
            )
        )
    return tuple(found)


def resolve(
    requirements: Sequence[str],
    target: Target,
    *,
    dependencies: bool = False,
    constraints: Sequence[str] = (),
    find_links: Sequence[Path] = (),
    pre: bool = False,
    index: str | None = None,
) -> Resolution:
    """Ask pip, in one call, where it has wheels of these requirements for the target.

    With ``index`` that package index is asked instead of the user's own and nothing beside it.

    A requirement that no configured place has is left out and asked about no more; with
    ``dependencies`` that is an error instead. Nothing is installed, and wheels are downloaded only
    where an index does not serve their metadata apart.
    """
    wanted = list(requirements)
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="assembler-pip-") as scratch:
        folder = Path(scratch)
        report = folder / "report.json"
        log = folder / "pip.log"
        limits = folder / "constraints.txt"
        limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
        fixed = ["install", "--dry-run", "--quiet", "--ignore-installed", "--no-cache-dir"]
        fixed += ["--log", str(log), "--report", str(report), *target.options(folder / "unused")]
        fixed += ["--constraint", str(limits)] if constraints else []
        fixed += ["--pre"] if pre else []
        fixed += ["--index-url", index] if index else []
        for place in find_links:
            fixed += ["--find-links", str(place)]
        fixed += [] if dependencies else ["--no-deps"]
        while wanted:
            result = _run([*fixed, *wanted], alone=index is not None)
            if result.returncode == 0:
                return Resolution(_read_report(report), tuple(missing), unreachable=False)
            _check_pip(result)
            if _NETWORK.search(result.stderr) or _unreached(log):
                return Resolution((), (*missing, *wanted), unreachable=True)
            match = _NOT_FOUND.search(result.stderr)
            gone = [line for line in wanted if match and same_name(line, match.group(1))]
            if dependencies or not gone:
                raise SourceUnavailableError(
                    f"pip found no answer ({last_words(result.stderr)})",
                    remedy="check the names, and the places in `pip config list`",
                )
            missing += gone
            wanted = [line for line in wanted if line not in gone]
    return Resolution((), tuple(missing), unreachable=False)


def same_name(requirement: str, name: str) -> bool:
    """Tell whether a requirement is about the distribution ``name``."""
    return normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]) == normal(name)


def download(
    requirement: str, target: Target, folder: Path, *, index: str | None = None
) -> Path | None:
    """Let pip itself download one wheel into ``folder``; None when it cannot.

    Slower and not resumable, but it knows every way in: keyrings, netrc, client certificates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = [option for option in target.options(folder) if option != "--no-user"]
    position = options.index("--target")
    del options[position : position + 2]
    result = _run(
        [
            "download",
            "--quiet",
            "--no-deps",
            "--no-cache-dir",
            "--dest",
            str(folder),
            *options,
            *(["--index-url", index] if index else []),
            requirement,
        ],
        alone=index is not None,
    )
    _check_pip(result)
    files = sorted(folder.glob("*.whl"))
    return files[0] if result.returncode == 0 and files else None


def places(values: Mapping[str, str]) -> str:
    """Return in words which kinds of places pip is configured to look at (never their names)."""
    kinds = []
    if values.get("no-index", "") not in ("1", "true", "yes", "on"):
        kinds.append("a package index of its own" if values.get("index-url") else "PyPI")
        kinds += ["extra indexes"] if values.get("extra-index-url") else []
    kinds += ["find-links"] if values.get("find-links") else []
    return " and ".join(kinds) or "nowhere"
